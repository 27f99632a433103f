//! The programs that tests need on the machine, how to see whether they are there, and which package brings them.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::bench::install_node_peers;
use crate::run::{output, run, succeeds};

/// One requirement of the tests.
struct Requirement {
    what: &'static str,
    /// A shell command that succeeds where it is met. It looks where the test bench looks.
    check: &'static str,
    /// The Debian package that brings it.
    package: &'static str,
}

const REQUIREMENTS: [Requirement; 10] = [
    Requirement {
        what: "redis-server or valkey-server",
        check: "command -v redis-server || command -v valkey-server",
        package: "redis-server",
    },
    Requirement { what: "mariadbd", check: "command -v mariadbd", package: "mariadb-server" },
    Requirement {
        what: "the Postgres server",
        check: "test -x \"$(pg_config --bindir)/postgres\" || ls /usr/lib/postgresql/*/bin/postgres",
        package: "postgresql",
    },
    Requirement {
        what: "psql, the client that tries to write around a guard",
        check: "test -x \"$(pg_config --bindir)/psql\" || command -v psql",
        package: "postgresql-client",
    },
    Requirement {
        what: "mariadb or mysql, the client for the same",
        check: "command -v mariadb || command -v mysql",
        package: "mariadb-client",
    },
    Requirement { what: "sqlite3, the client for the same", check: "command -v sqlite3", package: "sqlite3" },
    Requirement { what: "etcd", check: "command -v etcd", package: "etcd-server" },
    Requirement {
        what: "openssl, which makes the certificates of TLS tests",
        check: "command -v openssl",
        package: "openssl",
    },
    Requirement {
        what: "redis-py, the client in another language that must exclude ours and be excluded",
        check: "/usr/bin/python3 -c 'import redis'",
        package: "python3-redis",
    },
    Requirement {
        what: "npm, which brings node-redlock, which must exclude ours and be excluded as well",
        check: "command -v node && command -v npm",
        package: "npm",
    },
];

/// Makes sure that everything is there; with `install`, by bringing what is not.
pub(crate) fn ensure_installed(install: bool) -> Result<()> {
    if install && let missing @ [_, ..] = missing().as_slice() {
        apt_install(missing)?;
    }
    // The one test that needs it fails without it, and says so; nothing else has to wait for another registry.
    if install && let Err(error) = install_node_peers() {
        eprintln!("node-redlock was not brought: {error:#}");
    }
    let missing = missing();
    let list: String = missing.iter().map(|requirement| format!("\n  {}", requirement.what)).collect();
    let packages = packages(&missing);
    ensure!(
        missing.is_empty(),
        "the tests need what is not installed:{list}\nrun `cargo xtask test --install`, or `apt-get install {packages}`"
    );
    Ok(())
}

fn missing() -> Vec<&'static Requirement> {
    REQUIREMENTS.iter().filter(|requirement| !succeeds(&mut shell(requirement.check))).collect()
}

/// Brings the packages. Their own services may start; they listen on their default ports, far from those of the bench.
fn apt_install(missing: &[&Requirement]) -> Result<()> {
    let packages = packages(missing);
    let install = format!("apt-get install --yes --no-install-recommends {packages}");
    // The lists of a fresh machine are empty, those of an old one name packages that are gone. Both show only now.
    if run(&mut apt(&install)).is_err() {
        run(&mut apt("apt-get update"))?;
        run(&mut apt(&install))?;
    }
    Ok(())
}

fn apt(command: &str) -> Command {
    let is_root = output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    let sudo = if is_root { "" } else { "sudo " };
    // A lock held by another apt is waited for; a package that wants to ask something takes its default.
    let mut apt = shell(&format!("{sudo}env DEBIAN_FRONTEND=noninteractive {command} -o DPkg::Lock::Timeout=300"));
    apt.stdin(std::process::Stdio::null());
    apt
}

fn packages(requirements: &[&Requirement]) -> String {
    requirements.iter().map(|requirement| requirement.package).collect::<Vec<_>>().join(" ")
}

/// A shell that also looks where servers live, which is not on everybody's search path.
fn shell(script: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"));
    shell
}
