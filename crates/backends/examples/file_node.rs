//! A node made of one file: what a backend has to do, to be copied and changed.
//!
//! ```text
//! cargo run -p redlock-backends --example file_node FOLDER
//! ```
//!
//! Start it twice at once: the second one waits until the first is done.

use async_trait::async_trait;
use redlock_core::{
    Acquisition, Extension, Fingerprint, HeldBy, Holder, LockNode, NodeError, Ownership, Raising, Redlock, Releasing,
    Remaining, Ttl,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The longest that a call waits for its turn at the file.
const TURN_MAX: Duration = Duration::from_secs(5);

/// One file is one node: whoever may write it may lock.
#[derive(Debug)]
pub(crate) struct FileNode {
    name: String,
    path: PathBuf,
}

/// What the node remembers of a resource. The counter stays when the lock has gone.
#[derive(Default, Deserialize, Serialize)]
struct Entry {
    counter: u64,
    owner: String,
    /// Microseconds since 1970. Not later than now: free.
    expires_at: u64,
}

type Entries = BTreeMap<String, Entry>;

impl FileNode {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { name: path.display().to_string(), path }
    }

    /// One call: waits for its turn, reads everything, decides, writes everything. So calls are atomic. It runs on a thread
    /// of its own; if the caller is dropped meanwhile, it has happened all the same, which the contract allows.
    async fn call<T: Send + 'static>(
        &self,
        ownership: &Ownership,
        decide: impl FnOnce(&mut Entries, &Ownership, u64) -> T + Send + 'static,
    ) -> Result<T, NodeError> {
        let (path, ownership) = (self.path.clone(), ownership.clone());
        let call = move || {
            let _turn = turn(&path)?;
            let mut entries = read(&path)?;
            // The time is looked at when it is our turn: a lock's ttl begins when the call takes effect.
            let answer = decide(&mut entries, &ownership, micros());
            write(&path, &entries)?;
            io::Result::Ok(answer)
        };
        // An error does not say whether the file was written, so it is "unknown" to the caller: never "held", never "granted".
        tokio::task::spawn_blocking(call).await.map_err(NodeError::unreachable)?.map_err(NodeError::unreachable)
    }
}

#[async_trait]
impl LockNode for FileNode {
    fn name(&self) -> &str {
        &self.name
    }

    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        self.call(ownership, move |entries, ownership, now| {
            // All or nothing: look at every resource before the first is taken.
            for resource in ownership.resources() {
                let key = [ownership.prefix().as_str(), resource.name()].concat();
                if let Some(entry) = entries.get(&key).filter(|entry| now < entry.expires_at) {
                    let holder = Holder::Owner(Fingerprint::of(&entry.owner));
                    let remaining = Remaining::For(Duration::from_micros(entry.expires_at - now));
                    return Acquisition::Held(HeldBy { resource: resource.clone(), holder, remaining });
                }
            }
            let known = keys(ownership).filter_map(|key| entries.get(&key)).map(|entry| entry.counter).max();
            let counter = 1 + known.unwrap_or(0).max(floor);
            for key in keys(ownership) {
                let owner = ownership.owner().expose().to_owned();
                entries.insert(key, Entry { counter, owner, expires_at: now + 1_000 * ttl.as_millis() });
            }
            Acquisition::Granted { counter }
        })
        .await
    }

    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<Raising, NodeError> {
        self.call(ownership, move |entries, ownership, now| {
            if standing(entries, ownership, now) != Extension::Extended {
                return Raising::NotOwner;
            }
            let mut greatest = to;
            for key in keys(ownership) {
                let entry = entries.entry(key).or_default();
                entry.counter = entry.counter.max(to);
                greatest = greatest.max(entry.counter);
            }
            Raising::At(greatest)
        })
        .await
    }

    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<Extension, NodeError> {
        self.call(ownership, move |entries, ownership, now| {
            let standing = standing(entries, ownership, now);
            if standing == Extension::Extended {
                for key in keys(ownership) {
                    entries.entry(key).or_default().expires_at = now + 1_000 * ttl.as_millis();
                }
            }
            standing
        })
        .await
    }

    async fn release(&self, ownership: &Ownership) -> Result<Releasing, NodeError> {
        self.call(ownership, |entries, ownership, now| {
            let standing = standing(entries, ownership, now);
            for key in keys(ownership) {
                if let Some(entry) = entries.get_mut(&key).filter(|entry| entry.owner == ownership.owner().expose()) {
                    entry.expires_at = 0;
                }
            }
            match standing {
                Extension::Extended => Releasing::Released,
                Extension::Gone => Releasing::Gone,
                Extension::NotOwner => Releasing::NotOwner,
            }
        })
        .await
    }

    fn unix_time(&self) -> Option<Duration> {
        Some(Duration::from_micros(micros()))
    }
}

/// How an owner stands to its resources, in the words of an extension.
fn standing(entries: &Entries, ownership: &Ownership, now: u64) -> Extension {
    let mut standing = Extension::Extended;
    for key in keys(ownership) {
        match entries.get(&key).filter(|entry| now < entry.expires_at) {
            Some(entry) if entry.owner == ownership.owner().expose() => {}
            Some(_) => return Extension::NotOwner,
            None => standing = Extension::Gone,
        }
    }
    standing
}

fn keys(ownership: &Ownership) -> impl Iterator<Item = String> {
    ownership.resources().iter().map(|resource| [ownership.prefix().as_str(), resource.name()].concat())
}

/// Waits until nobody else is at the file; the turn ends when the answer is dropped, or its process ends.
pub(crate) fn turn(path: &Path) -> io::Result<File> {
    let file = File::create(beside(path, ".turn"))?;
    let until = micros() + u64::try_from(TURN_MAX.as_micros()).unwrap_or(u64::MAX);
    while micros() < until {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) => {}
        }
        #[allow(clippy::disallowed_methods, reason = "a file lock with a limit offers nothing to wait for")]
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(ErrorKind::TimedOut.into())
}

/// A file that cannot be understood is an error: to forget what it says could be a second grant, or a lower counter.
fn read(path: &Path) -> io::Result<Entries> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Entries::new()),
        bytes => Ok(serde_json::from_slice(&bytes?)?),
    }
}

/// Either the whole new file is there after a crash, or the old one; and once this has returned, the new one.
fn write(path: &Path, entries: &Entries) -> io::Result<()> {
    let fresh = beside(path, ".new");
    let file = File::create(&fresh)?;
    serde_json::to_writer_pretty(&file, entries)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    // The file's name is in the folder, which is on the disk when it has been brought there, too.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

#[allow(clippy::disallowed_methods, reason = "leases in a file have to mean the same after a restart")]
fn micros() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Three files stand for three machines.
pub(crate) fn nodes(folder: &Path) -> Vec<Arc<dyn LockNode>> {
    let nodes = ["one", "two", "three"].map(|name| FileNode::new(folder.join(name)));
    nodes.into_iter().map(|node| Arc::new(node) as Arc<dyn LockNode>).collect()
}

#[tokio::main]
#[allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("name a folder for the three files")?;
    fs::create_dir_all(&folder)?;
    let nodes = nodes(Path::new(&folder));
    let redlock = Redlock::builder().nodes(nodes).node_timeout(Duration::from_millis(500)).build()?;
    let guard = redlock.acquire("jobs/backup").await?;
    println!("granted by three files, token {}", guard.token());
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!("released: {:?}", guard.release().await.outcome);
    Ok(())
}
