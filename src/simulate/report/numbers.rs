//! How is a number written? To three digits, in a unit that suits it, so that columns can be compared at a glance.

/// What stands where there is no figure.
pub(super) const NONE: &str = "–";

/// The unit in which times of one column are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeUnit {
    Milliseconds,
    Seconds,
}

impl TimeUnit {
    /// One unit for all of the times, in seconds, that are compared with each other: seconds where they reach ten
    /// or where none is below one, since "12,345 ms" is hard to read.
    pub(super) fn of(times: impl Iterator<Item = f64>) -> Self {
        let (mut least, mut greatest) = (f64::INFINITY, 0.0_f64);
        for time in times.filter(|time| time.is_finite() && *time > 0.0) {
            least = least.min(time);
            greatest = greatest.max(time);
        }
        if greatest >= 10.0 || (least >= 1.0 && least.is_finite()) {
            Self::Seconds
        } else {
            Self::Milliseconds
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
        }
    }

    /// Writes a time given in seconds, without the unit.
    pub(super) fn write(self, seconds: f64) -> String {
        match self {
            Self::Milliseconds => significant(seconds * 1000.0),
            Self::Seconds => significant(seconds),
        }
    }
}

/// Writes a number without zeros at its end that say nothing.
pub(super) fn short(value: f64) -> String {
    let text = significant(value);
    match text.split_once('.') {
        Some((whole, fraction)) if !text.contains('e') => {
            let fraction = fraction.trim_end_matches('0');
            match fraction {
                "" => whole.to_owned(),
                _ => format!("{whole}.{fraction}"),
            }
        }
        _ => text,
    }
}

/// Writes a round time, given in seconds, for an axis.
pub(super) fn round_time(seconds: f64) -> String {
    if seconds >= 0.999 {
        format!("{} s", short(seconds))
    } else {
        format!("{} ms", short(seconds * 1000.0))
    }
}

/// Writes one time, given in seconds, with the unit that suits it alone.
pub(super) fn time(seconds: f64) -> String {
    let unit = if seconds.abs() >= 1.0 {
        TimeUnit::Seconds
    } else {
        TimeUnit::Milliseconds
    };
    format!("{} {}", unit.write(seconds), unit.name())
}

/// Writes a span on a clock: 0:07, 12:34, 1:02:03.
pub(super) fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// Writes a share of 0 to 1 in per cent.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent.is_finite() && percent.abs() < 1000.0 {
        format!("{percent:.1} %")
    } else {
        // No share at all, but it must not fill the line.
        significant(percent)
    }
}

/// Writes a number with three digits that count, or all of those before the point; powers of ten where it would
/// be too long.
pub(super) fn significant(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return NONE.to_owned();
    }
    if size == 0.0 {
        return "0".to_owned();
    }
    if !(1e-3..1e12).contains(&size) {
        return format!("{value:.1e}");
    }
    // The borders are where rounding would give a digit more.
    let decimals = match size {
        s if s >= 99.95 => 0,
        s if s >= 9.995 => 1,
        s if s >= 0.9995 => 2,
        s if s >= 0.099_95 => 3,
        s if s >= 0.009_995 => 4,
        _ => 5,
    };
    grouped(&format!("{value:.decimals$}"))
}

/// Puts a comma between groups of three digits before the point.
pub(crate) fn grouped(number: &str) -> String {
    let (sign, digits) = match number.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", number),
    };
    let (whole, fraction) = digits
        .split_once('.')
        .map_or((digits, None), |(whole, fraction)| (whole, Some(fraction)));
    let mut text = sign.to_owned();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if let Some(fraction) = fraction {
        text.push('.');
        text.push_str(fraction);
    }
    text
}
