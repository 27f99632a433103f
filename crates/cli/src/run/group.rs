//! A process group: the program and all it has started that has not left.

use rustix::process::{Pid, Signal, kill_process_group};

/// A group, by the process that leads it. That process is not reaped while this is in use, so that the number cannot be
/// given to another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group(Pid);

impl Group {
    pub(super) fn led_by(leader: Pid) -> Self {
        Self(leader)
    }

    /// Sends a signal to all members at once. That nobody is left is no failure.
    pub(super) fn signal(self, signal: Signal) {
        let _ = kill_process_group(self.0, signal);
    }

    /// Whether no member is alive; processes that have ended and were not reaped yet are not.
    #[cfg(target_os = "linux")]
    pub(super) fn is_empty(self) -> bool {
        let Ok(processes) = std::fs::read_dir("/proc") else { return true };
        let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        !pids.into_iter().any(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            is_alive_in(&stat, self.0.as_raw_nonzero().get())
        })
    }

    /// Elsewhere it cannot be told apart from the program that has ended itself.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn is_empty(self) -> bool {
        true
    }
}

/// Reads a line of `/proc/PID/stat`: the name in parentheses may hold anything, so it is counted from the last of them.
#[cfg(target_os = "linux")]
fn is_alive_in(stat: &str, group: i32) -> bool {
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let mut fields = fields.split_whitespace();
    let (state, group_of_it) = (fields.next(), fields.nth(1));
    !matches!(state, None | Some("Z" | "X")) && group_of_it.and_then(|field| field.parse().ok()) == Some(group)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_behind_any_name() {
        assert!(is_alive_in("7 (sh) S 1 42 42 0", 42));
        assert!(is_alive_in("7 (a) Z 9 (b) R 1 42 42 0", 42));
        assert!(!is_alive_in("7 (sh) Z 1 42 42 0", 42));
        assert!(!is_alive_in("7 (sh) S 1 43 43 0", 42));
        assert!(!is_alive_in("", 42));
    }
}
