//! Libraries in other languages: where they are, and what stands in for them where they are not.

use std::ffi::OsString;
use std::path::PathBuf;

use futures_util::future::try_join_all;

use super::super::Places;
use super::super::findings::Findings;
use super::super::peer::Peer;
use super::super::worker;

/// A library that runs in a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Library {
    /// Our own lock, or another kind of our worker.
    Worker(&'static str),
    NodeRedlock,
    Pottery,
    RedlockPy,
}

impl Library {
    /// Those in other languages.
    pub(super) const FOREIGN: [Self; 3] = [Self::NodeRedlock, Self::Pottery, Self::RedlockPy];

    pub(super) const OURS: Self = Self::Worker(worker::OURS);
    pub(super) const IDEAL: Self = Self::Worker(worker::IDEAL);
    pub(super) const RSLOCK: Self = Self::Worker(worker::RSLOCK);

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Worker(kind) => kind,
            Self::NodeRedlock => "node-redlock",
            Self::Pottery => "pottery",
            Self::RedlockPy => "redlock-py",
        }
    }

    const fn script(self) -> &'static str {
        match self {
            Self::Worker(_) => "",
            Self::NodeRedlock => "node-redlock.mjs",
            Self::Pottery => "python-pottery.py",
            Self::RedlockPy => "python-redlock-py.py",
        }
    }

    /// Starts processes side by side, one for each list of servers, or says in the findings why there are none.
    pub(super) async fn start_all(
        self,
        places: &Places,
        servers: &[Vec<String>],
        findings: &mut Findings,
    ) -> Option<Vec<Peer>> {
        match try_join_all(servers.iter().map(|urls| self.launch(places, urls))).await {
            Ok(peers) => Some(peers),
            Err(why) => {
                findings.miss(self.name(), why);
                None
            }
        }
    }

    async fn launch(self, places: &Places, urls: &[String]) -> Result<Peer, String> {
        let (program, arguments): (PathBuf, Vec<OsString>) = match self {
            Self::Worker(kind) => (places.program.clone(), vec!["--worker".into(), kind.into()]),
            Self::NodeRedlock => ("node".into(), vec![places.scripts.join(self.script()).into()]),
            Self::Pottery | Self::RedlockPy => {
                let own = places.libraries.join("python/bin/python3");
                let python = if own.exists() { own } else { "python3".into() };
                (python, vec![places.scripts.join(self.script()).into()])
            }
        };
        Peer::start(&program, &arguments, urls, &places.libraries).await.map_err(|why| {
            let program = program.file_name().unwrap_or_default().to_string_lossy();
            format!("not present: {program}: {why}")
        })
    }
}
