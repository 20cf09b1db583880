//! The tables of the study: one for each load, and one of all.

use std::fmt::Write as _;

use super::super::outcome::Outcome;

/// What one policy did under one load in one loop.
#[derive(Clone, Debug)]
pub struct Row {
    /// The policy.
    pub policy: String,
    /// At the fleet that all have.
    pub outcome: Outcome,
    /// The smallest fleet that met the goal; `None`: none of those tried. Not searched for: no value at all.
    pub smallest: Option<Option<usize>>,
}

/// All policies under one load in one loop.
#[derive(Clone, Debug)]
pub struct Sheet {
    /// Heading.
    pub title: String,
    /// Policies in their order.
    pub rows: Vec<Row>,
    /// The largest fleet tried.
    pub most: usize,
}

impl Sheet {
    /// The best value of a figure over all policies that failed no request.
    fn best(&self, figure: impl Fn(&Row) -> f64) -> f64 {
        let sound = self.rows.iter().filter(|row| row.outcome.failed == 0);
        sound.map(figure).fold(f64::INFINITY, f64::min)
    }

    /// How much more time to first token a policy's requests take than the best policy's, in the mean: 0.1 is a tenth.
    pub fn regret(&self, policy: &str) -> Option<f64> {
        let best = self.best(|row| row.outcome.ttft.mean);
        let row = self.rows.iter().find(|row| row.policy == policy)?;
        (best > 0.0 && best.is_finite()).then(|| row.outcome.ttft.mean / best - 1.0)
    }

    /// The same of the whole time to the last token.
    pub fn latency_regret(&self, policy: &str) -> Option<f64> {
        let best = self.best(|row| row.outcome.latency.mean);
        let row = self.rows.iter().find(|row| row.policy == policy)?;
        (best > 0.0 && best.is_finite()).then(|| row.outcome.latency.mean / best - 1.0)
    }

    /// The sheet as a table.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "**{}**\n\n| policy | TTFT mean | p50 | p90 | p99 | mean against the best | TPOT p50 | latency mean | cached | \
             imbalance | preempted | smallest fleet |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
            self.title
        );
        for row in &self.rows {
            let Outcome {
                ttft,
                tpot,
                latency,
                ..
            } = &row.outcome;
            let failed = match row.outcome.failed {
                0 => String::new(),
                failed => format!(" ({failed} failed)"),
            };
            // Writing to a string cannot fail.
            writeln!(
                text,
                "| {}{failed} | {} | {} | {} | {} | {} | {} | {} | {:.1} % | {:.2} | {} | {} |",
                row.policy,
                time(ttft.mean),
                time(ttft.p50),
                time(ttft.p90),
                time(ttft.p99),
                share(self.regret(&row.policy)),
                time(tpot.p50),
                time(latency.mean),
                row.outcome.cached_share * 100.0,
                row.outcome.imbalance,
                row.outcome.preemptions,
                self.fleet(row),
            )
            .ok();
        }
        text
    }

    fn fleet(&self, row: &Row) -> String {
        match row.smallest {
            None => "–".to_owned(),
            Some(Some(replicas)) => replicas.to_string(),
            Some(None) => format!("> {}", self.most),
        }
    }
}

/// For each policy the regret under each load, and the worst of them.
pub fn overview(sheets: &[(String, Sheet)], policies: &[String]) -> String {
    let heads: Vec<&str> = sheets.iter().map(|(name, _)| name.as_str()).collect();
    let mut text = format!(
        "| policy | {} | worst |\n|---|{}---|\n",
        heads.join(" | "),
        "---|".repeat(heads.len())
    );
    for policy in policies {
        let regrets: Vec<Option<f64>> = sheets
            .iter()
            .map(|(_, sheet)| sheet.regret(policy))
            .collect();
        let worst = regrets.iter().flatten().copied().fold(0.0, f64::max);
        let cells: Vec<String> = regrets.into_iter().map(share).collect();
        writeln!(
            text,
            "| {policy} | {} | {} |",
            cells.join(" | "),
            share(Some(worst))
        )
        .ok();
    }
    text
}

/// For each policy the smallest fleet under each load.
pub fn fleets(sheets: &[(String, Sheet)], policies: &[String]) -> String {
    let searched: Vec<&(String, Sheet)> = sheets
        .iter()
        .filter(|(_, sheet)| sheet.rows.iter().any(|row| row.smallest.is_some()))
        .collect();
    let heads: Vec<&str> = searched.iter().map(|(name, _)| name.as_str()).collect();
    let mut text = format!(
        "| policy | {} |\n|---|{}\n",
        heads.join(" | "),
        "---|".repeat(heads.len())
    );
    for policy in policies {
        let cells: Vec<String> = searched
            .iter()
            .map(|(_, sheet)| {
                let row = sheet.rows.iter().find(|row| row.policy == *policy);
                row.map_or_else(|| "–".to_owned(), |row| sheet.fleet(row))
            })
            .collect();
        writeln!(text, "| {policy} | {} |", cells.join(" | ")).ok();
    }
    text
}

fn time(seconds: f64) -> String {
    if seconds >= 100.0 {
        format!("{seconds:.0} s")
    } else if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else if seconds >= 0.01 {
        format!("{:.0} ms", seconds * 1e3)
    } else {
        format!("{:.2} ms", seconds * 1e3)
    }
}

fn share(regret: Option<f64>) -> String {
    match regret {
        None => "–".to_owned(),
        Some(regret) if regret >= 9.995 => format!("×{:.0}", regret + 1.0),
        Some(regret) if regret < 0.000_5 => "best".to_owned(),
        Some(regret) => format!("+{:.1} %", regret * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(policy: &str, mean: f64, failed: u64, smallest: Option<usize>) -> Row {
        let mut outcome = Outcome {
            failed,
            ..Outcome::default()
        };
        outcome.ttft.mean = mean;
        Row {
            policy: policy.to_owned(),
            outcome,
            smallest: Some(smallest),
        }
    }

    #[test]
    fn regret_is_counted_from_the_best_policy_that_failed_nothing() {
        let rows = vec![
            row("a", 0.2, 0, Some(3)),
            row("b", 0.1, 1, None),
            row("c", 0.3, 0, Some(4)),
        ];
        let sheet = Sheet {
            title: "Load".to_owned(),
            rows,
            most: 9,
        };
        assert_eq!(sheet.regret("a"), Some(0.0));
        assert!((sheet.regret("c").unwrap() - 0.5).abs() < 1e-12);
        assert_eq!(sheet.regret("none"), None);
        let text = sheet.markdown();
        assert!(
            text.contains("| a | 200 ms |") && text.contains("| b (1 failed) |"),
            "{text}"
        );
        assert!(
            text.contains("> 9") && text.contains("+50.0 %") && text.contains("| best |"),
            "{text}"
        );
        let sheets = [("load".to_owned(), sheet)];
        let policies = ["a".to_owned(), "c".to_owned()];
        assert!(overview(&sheets, &policies).contains("| c | +50.0 % | +50.0 % |"));
        assert!(fleets(&sheets, &policies).contains("| a | 3 |"));
    }
}
