//! Metrics of this process from `/proc/self`, and of this build.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, GaugeVec, Opts, Registry};

/// Ticks a second in `/proc`: fixed in the kernel's interface on the architectures we build for.
const TICKS_PER_SECOND: f64 = 100.0;

/// Registers the process's and the build's metrics.
///
/// # Errors
/// When a name is taken.
pub fn register(registry: &Registry) -> prometheus::Result<()> {
    let build = GaugeVec::new(
        Opts::new("warmpath_build_info", "The version that runs; always 1"),
        &["version"],
    )?;
    build
        .with_label_values(&[env!("CARGO_PKG_VERSION")])
        .set(1.0);
    registry.register(Box::new(build))?;
    registry.register(Box::new(ProcessCollector::new()?))
}

/// Reads `/proc/self` when a scrape comes. Where there is no such folder it tells nothing.
struct ProcessCollector {
    cpu: Counter,
    resident: Gauge,
    open_fds: Gauge,
    threads: Gauge,
}

impl ProcessCollector {
    fn new() -> prometheus::Result<Self> {
        Ok(Self {
            cpu: Counter::new(
                "process_cpu_seconds_total",
                "User and system CPU time of this process",
            )?,
            resident: Gauge::new(
                "process_resident_memory_bytes",
                "Resident memory of this process",
            )?,
            open_fds: Gauge::new("process_open_fds", "Open file descriptors of this process")?,
            threads: Gauge::new("process_threads", "Threads of this process")?,
        })
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        let mut descs = self.cpu.desc();
        descs.extend(self.resident.desc());
        descs.extend(self.open_fds.desc());
        descs.extend(self.threads.desc());
        descs
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = Vec::new();
        if let Some(seconds) = read("stat").and_then(|stat| cpu_seconds(&stat)) {
            self.cpu.inc_by((seconds - self.cpu.get()).max(0.0));
            families.extend(self.cpu.collect());
        }
        if let Some(status) = read("status") {
            if let Some(kib) = field(&status, "VmRSS:") {
                self.resident.set(kib * 1024.0);
                families.extend(self.resident.collect());
            }
            if let Some(threads) = field(&status, "Threads:") {
                self.threads.set(threads);
                families.extend(self.threads.collect());
            }
        }
        if let Ok(fds) = std::fs::read_dir("/proc/self/fd") {
            let n_fds = u32::try_from(fds.count()).unwrap_or(u32::MAX);
            self.open_fds.set(f64::from(n_fds));
            families.extend(self.open_fds.collect());
        }
        families
    }
}

/// What a process has used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// User and system CPU time since it began.
    pub cpu_seconds: f64,
    /// Memory it holds now.
    pub resident_bytes: f64,
}

/// What the process `pid` has used; `None` if there is none of that name, or no `/proc`.
pub fn usage(pid: &str) -> Option<Usage> {
    let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    Some(Usage {
        cpu_seconds: cpu_seconds(&read("stat")?)?,
        resident_bytes: field(&read("status")?, "VmRSS:")? * 1024.0,
    })
}

fn read(name: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/self/{name}")).ok()
}

/// Fields 14 and 15 of `stat`, counted from behind the command's name, which may hold anything.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

/// The number after `name` in `status`.
fn field(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_command_name() {
        let stat = "1 (a) b) c) S 1 1 1 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 1 1 1";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("nonsense"), None);
    }

    #[test]
    fn this_process_has_memory_threads_and_files() {
        let registry = Registry::new();
        register(&registry).unwrap();
        for family in registry.gather() {
            if matches!(
                family.name(),
                "process_resident_memory_bytes" | "process_threads" | "process_open_fds"
            ) {
                assert!(family.get_metric()[0].get_gauge().get_value() >= 1.0);
            }
        }
        assert_eq!(registry.gather().len(), 5);
    }
}
