//! Where figures come from: machine, versions, commit, command. Without them a figure is a rumour.

use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::stage::Stage;

/// The workspace's lock file as this program was built, which knows the version of everything in it.
const LOCK_FILE: &str = include_str!("../../../../Cargo.lock");

const UNKNOWN: &str = "unknown";

/// What one needs to measure the same again.
#[derive(Debug, Clone, Serialize)]
pub struct Origin {
    /// The exact command.
    pub command: String,
    /// The commit, with a `+` if something was changed since.
    pub commit: String,
    /// Processor and number of cores.
    pub processor: String,
    /// The operating system and its version.
    pub system: String,
    /// The load average when the report was written: how much others had to do.
    pub load_average: String,
    /// The servers' version.
    pub server: String,
    /// The version of the `redis` crate.
    pub redis_crate: String,
    /// The version of the `rslock` crate.
    pub rslock_crate: String,
    /// The version of this workspace.
    pub redlock: String,
    /// The compiler.
    pub compiler: String,
    /// Whether the program was built with optimisations; figures of one that was not are worth nothing.
    pub optimised: bool,
}

impl Origin {
    pub(super) async fn of(stage: &Stage, command: String) -> Self {
        let server = stage.healthy[0].probe().info_field("redis_version").await;
        Self {
            command,
            commit: commit(),
            processor: processor(),
            system: format!("{} {}", std::env::consts::OS, read("/proc/sys/kernel/osrelease")),
            load_average: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
            server: server.unwrap_or_else(|_| UNKNOWN.into()),
            redis_crate: locked_version("redis").unwrap_or(UNKNOWN).into(),
            rslock_crate: locked_version("rslock").unwrap_or(UNKNOWN).into(),
            redlock: env!("CARGO_PKG_VERSION").into(),
            compiler: output("rustc", &["--version"]),
            optimised: !cfg!(debug_assertions),
        }
    }
}

fn commit() -> String {
    let commit = output("git", &["rev-parse", "--short=10", "HEAD"]);
    let changes = output("git", &["status", "--porcelain", "--untracked-files=no"]);
    let changed = if changes == UNKNOWN { "" } else { "+" };
    commit + changed
}

fn processor() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    format!("{}, {cores} cores", model.map_or(UNKNOWN, |(_, model)| model.trim()))
}

/// The version that a package has in the lock file.
fn locked_version(package: &str) -> Option<&'static str> {
    let named = format!("name = \"{package}\"");
    let mut lines = LOCK_FILE.lines();
    lines.find(|line| *line == named)?;
    lines.next()?.strip_prefix("version = \"")?.strip_suffix('"')
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).map_or_else(|_| UNKNOWN.into(), |text| text.trim().to_owned())
}

/// What a command says, or that it says nothing.
fn output(program: &str, arguments: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(program).args(arguments).current_dir(root).output();
    let said = output.ok().filter(|output| output.status.success()).and_then(|it| String::from_utf8(it.stdout).ok());
    said.map(|said| said.trim().to_owned()).filter(|said| !said.is_empty()).unwrap_or_else(|| UNKNOWN.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_tells_the_version_of_the_client() {
        assert!(locked_version("redis").is_some_and(|version| version.starts_with("1.")));
        assert_eq!(locked_version("no such package"), None);
    }
}
