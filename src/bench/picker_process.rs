//! What does the picker itself use? Read from `/proc` of its process, or from its metrics page.

use std::time::Duration;

use anyhow::Context as _;

use crate::metrics::process;

/// Where a picker's CPU time and memory are read.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A process of this machine.
    Pid(u32),
    /// A Prometheus page with the customary `process_` series.
    Page(reqwest::Client, String),
    /// Nowhere.
    Unknown,
}

/// What a process has used so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Used {
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: f64,
}

impl Source {
    /// `None` where there is nothing to read.
    ///
    /// # Errors
    /// When the process or the page cannot be read.
    pub(super) async fn read(&self) -> anyhow::Result<Option<Used>> {
        match self {
            Self::Unknown => Ok(None),
            Self::Pid(pid) => of_process(&pid.to_string()).map(Some),
            Self::Page(client, url) => {
                let asked = client.get(url).timeout(Duration::from_secs(5)).send();
                let page = asked.await?.error_for_status()?.text().await?;
                let used = of_page(&page);
                let used = used.with_context(|| format!("{url} has no series of the process"))?;
                Ok(Some(used))
            }
        }
    }
}

/// Of a process of this machine; `self` is this one.
pub(super) fn of_process(pid: &str) -> anyhow::Result<Used> {
    let usage = process::usage(pid);
    let usage = usage.with_context(|| format!("cannot read /proc/{pid}"))?;
    Ok(Used {
        cpu_seconds: usage.cpu_seconds,
        resident_bytes: usage.resident_bytes,
    })
}

fn of_page(page: &str) -> Option<Used> {
    let value = |name: &str| {
        page.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .and_then(|value| value.trim().parse::<f64>().ok())
    };
    Some(Used {
        cpu_seconds: value("process_cpu_seconds_total")?,
        resident_bytes: value("process_resident_memory_bytes")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_what_its_process_used() {
        let page = "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 1.5\n\
            process_resident_memory_bytes 2.5e+07\n";
        let used = of_page(page).unwrap();
        assert_eq!((used.cpu_seconds, used.resident_bytes), (1.5, 2.5e7));
        assert_eq!(of_page("process_cpu_seconds_total 1\n"), None);
    }

    #[test]
    fn this_process_has_used_something() {
        assert!(of_process("self").unwrap().resident_bytes > 0.0);
        assert!(of_process("none").is_err());
    }
}
