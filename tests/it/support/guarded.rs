//! A program that does not outlive the test process, however that ends.
//!
//! A destructor is not enough: what all tests share lives in a `static`, and a test run may be killed. So a shell
//! beside the program reads from a pipe that only the test process holds open, and kills the program at its end.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

/// Runs `$@` in the place of this shell, under the same process id. A word on the pipe means that it has ended.
const GUARD: &str =
    r#"exec 3<&0; (read -r word <&3 || kill -9 $$) >/dev/null 2>&1 & exec "$@" 3<&- </dev/null"#;
/// Removes a folder once nobody needs it, unless a test that failed wants it to be kept.
const SWEEP: &str = r#"trap '' INT; read -r word; sleep 1; [ -e "$1/keep" ] || rm -rf "$1""#;

/// A running program. It is killed on drop, and when the test process ends.
pub(crate) struct Guarded {
    program: Child,
    pipe: ChildStdin,
}

impl Guarded {
    /// Starts `command`, its output going to a file.
    pub(crate) fn start(command: &Command, log: &Path) -> Self {
        let log = File::create(log).expect("a temporary file");
        let mut guard = Command::new("sh");
        guard
            .args(["-c", GUARD, "guard"])
            .arg(command.get_program());
        guard.args(command.get_args());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => guard.env(key, value),
                None => guard.env_remove(key),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            guard.current_dir(folder);
        }
        guard.stdin(Stdio::piped());
        guard.stdout(log.try_clone().expect("a second handle"));
        guard.stderr(log);
        let mut program = guard.spawn().expect("a shell starts");
        let pipe = program.stdin.take().expect("it was asked for");
        Self { program, pipe }
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.program.try_wait().expect("our own child")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.program.id()
    }

    /// Sends a signal, by the name that kill(1) has for it.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.pid().to_string();
        let sent = Command::new("kill").args([name, &id]).status();
        assert!(
            sent.expect("kill is a program").success(),
            "no process {id}"
        );
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing left to do about an error then.
        drop(self.program.kill());
        drop(self.program.wait());
        // The id is free for others from now on: the guard must not kill it any more.
        drop(self.pipe.write_all(b"ended\n"));
    }
}

/// Removes `folder` a second after the test process has ended, or after this value is dropped.
pub(crate) struct Swept {
    _shell: Child,
}

impl Swept {
    pub(crate) fn after_use(folder: &Path) -> Self {
        let mut sweeper = Command::new("sh");
        sweeper.args(["-c", SWEEP, "sweep"]).arg(folder);
        sweeper.stdin(Stdio::piped()).stdout(Stdio::null());
        Self {
            _shell: sweeper
                .stderr(Stdio::null())
                .spawn()
                .expect("a shell starts"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::waiting::until;

    fn sleeper(log: &Path) -> Guarded {
        let mut command = Command::new("sleep");
        command.arg("1000");
        Guarded::start(&command, log)
    }

    #[tokio::test]
    async fn a_program_ends_with_the_process_that_held_its_pipe() {
        let folder = tempfile::tempdir().unwrap();
        let mut sleeper = sleeper(&folder.path().join("log"));
        assert_eq!(sleeper.ended(), None);
        // What the kernel does to a process that is killed: its end of the pipe closes without a word.
        let (read, write) = std::io::pipe().unwrap();
        drop((read, std::mem::replace(&mut sleeper.pipe, pipe_of(write))));
        until("the program was killed", async || sleeper.ended()).await;
    }

    fn pipe_of(end: std::io::PipeWriter) -> ChildStdin {
        ChildStdin::from(std::os::fd::OwnedFd::from(end))
    }

    #[tokio::test]
    async fn a_folder_goes_unless_a_failed_test_keeps_it() {
        let (gone, kept) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(kept.path().join("keep"), "").unwrap();
        drop((Swept::after_use(gone.path()), Swept::after_use(kept.path())));
        until("the folder is gone", async || {
            (!gone.path().exists()).then_some(())
        })
        .await;
        assert!(kept.path().exists());
    }
}
