//! An etcd cluster as a node: leases for the time, one transaction per decision.
//!
//! A lock is a key with the owner as its value and a lease of its own; the fence counter is a key without one, so it
//! outlives the lock. Every call ends in one transaction that compares what was read before with what is there: nothing falls
//! in between, and one that compared in vain has changed nothing and is tried again. A whole cluster is one vote. Alone it is
//! a lock as reliable as its consensus, since it does not forget.
//!
//! Leases are whole seconds and at least as long as an election of etcd's (two seconds by its defaults), so a lock may last
//! longer than its ttl, and never shorter: counted from the beginning of the call, as a client does, since the lease is made before
//! the transaction. A lease whose lock was released ends by itself. Speaks etcd's JSON gateway, version 3.4 or later, without TLS
//! and without users.

mod gateway;

use self::gateway::{Compare, Gateway, Operation, TransactionAnswer};
use async_trait::async_trait;
use redlock_core::{
    Acquisition, Extension, Fingerprint, Health, HeldBy, Holder, Inspection, KeyPrefix, LockNode, NodeError, Ownership,
    Raising, Refusal, Releasing, Remaining, Resource, Resources, Ttl,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The longest that a call may take: up to three questions, two of which wait for the disks of a majority.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// How often a transaction is tried again whose counters somebody else has changed since they were read.
const TRIES_MAX: usize = 32;

/// What the cluster is known by. No resource has a name that begins with `~`, so it is nobody's lock.
const IDENTITY: &str = "~redlock:identity";

/// An etcd cluster.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let node = redlock_backends::EtcdNode::connect("http://10.0.0.5:2379").await?;
/// # Ok(())
/// # }
/// ```
pub struct EtcdNode {
    gateway: Gateway,
    identity: Arc<str>,
}

/// What is known of one resource.
#[derive(Clone, Debug, Default)]
struct Seen {
    owner: Option<String>,
    counter: u64,
    /// The version of the counter's key; zero if there is none.
    counter_version: i64,
}

impl EtcdNode {
    /// Connects to a cluster by the address of one of its members.
    ///
    /// # Errors
    /// [`NodeError::Refused`] if the address is none, or the cluster wants users; [`NodeError::Unreachable`] or
    /// [`NodeError::Timeout`] if nobody answers there within five seconds.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind but the name that the cluster was given by whoever came first.
    pub async fn connect(url: &str) -> Result<Self, NodeError> {
        let gateway = Gateway::new(url)?;
        let identity = limited(identity(&gateway)).await?.into();
        Ok(Self { gateway, identity })
    }

    /// Reads locks and counters, all at one moment.
    async fn see(&self, prefix: &KeyPrefix, resources: &Resources) -> Result<Vec<Seen>, NodeError> {
        let keys = resources.iter().flat_map(|resource| [lock(prefix, resource), counter(prefix, resource)]);
        let answer = self.gateway.transaction(&[], keys.map(Operation::Get).collect(), Vec::new()).await?;
        seen(&answer)
    }

    /// A transaction in which the owner holds all resources, or which answers what was found instead.
    async fn as_holder(&self, ownership: &Ownership, mut also: Vec<Compare>, then: Vec<Operation>) -> Answer {
        let owner = ownership.owner().expose();
        let locks = ownership.resources().iter().map(|resource| lock(ownership.prefix(), resource));
        also.extend(locks.map(|key| Compare::Value(key, owner.to_owned())));
        self.gateway.transaction(&also, then, gets(ownership)).await
    }
}

type Answer = Result<TransactionAnswer, NodeError>;

async fn limited<T>(call: impl Future<Output = Result<T, NodeError>>) -> Result<T, NodeError> {
    tokio::time::timeout(CALL_LIMIT, call).await.unwrap_or(Err(NodeError::Timeout { after: CALL_LIMIT }))
}

/// The id that etcd gives a cluster is made of names and addresses: clusters that were set up alike have the same. So it is told
/// apart by a number as well, which the first one to connect draws.
async fn identity(gateway: &Gateway) -> Result<String, NodeError> {
    let cluster = gateway.status().await?.cluster;
    let get = || vec![Operation::Get(IDENTITY.to_owned())];
    // Looked for before it is written, so that a cluster that has no space left can be connected to.
    let mut answer = gateway.transaction(&[], get(), Vec::new()).await?;
    if answer.found.iter().all(Option::is_none) {
        let drawn = getrandom::u64().map_err(NodeError::unreachable)?.to_string();
        let put = vec![Operation::Put(IDENTITY.to_owned(), drawn, None)];
        gateway.transaction(&[Compare::Absent(IDENTITY.to_owned())], put, Vec::new()).await?;
        answer = gateway.transaction(&[], get(), Vec::new()).await?;
    }
    let number = answer.found.into_iter().flatten().next().ok_or_else(|| NodeError::protocol("no identity is kept"))?;
    Ok([cluster, number.value].join("/"))
}

fn lock(prefix: &KeyPrefix, resource: &Resource) -> String {
    [prefix.as_str(), resource.name()].concat()
}

/// No resource has a name that begins with `~`, so no counter is anybody's lock.
fn counter(prefix: &KeyPrefix, resource: &Resource) -> String {
    [prefix.as_str(), "~fence:", resource.name()].concat()
}

fn gets(ownership: &Ownership) -> Vec<Operation> {
    let resources = ownership.resources().iter();
    let keys = resources.flat_map(|name| [lock(ownership.prefix(), name), counter(ownership.prefix(), name)]);
    keys.map(Operation::Get).collect()
}

/// Reads the answers to [`gets`].
fn seen(answer: &TransactionAnswer) -> Result<Vec<Seen>, NodeError> {
    let pairs = answer.found.chunks_exact(2).map(|pair| {
        let (value, counter_version) = pair[1].clone().map_or((None, 0), |found| (Some(found.value), found.version));
        let counter = value.map_or(Ok(0), |value| value.parse());
        let counter = counter.map_err(|_| {
            NodeError::refused(Refusal::CounterBeyondTokens, "a fence counter's key holds something else")
        })?;
        Ok(Seen { owner: pair[0].clone().map(|found| found.value), counter, counter_version })
    });
    pairs.collect()
}

/// Whether the owner holds all of what was seen, and if not, why not: some are another's, or some are gone.
fn standing(seen: &[Seen], ownership: &Ownership) -> (bool, bool) {
    let owner = ownership.owner().expose();
    let all = seen.iter().all(|one| one.owner.as_deref() == Some(owner));
    (all, seen.iter().any(|one| one.owner.as_deref().is_some_and(|other| other != owner)))
}

fn held_by(resource: &Resource, owner: &str) -> HeldBy {
    let holder = Holder::Owner(Fingerprint::of(owner));
    HeldBy { resource: resource.clone(), holder, remaining: Remaining::Unknown }
}

fn too_busy() -> NodeError {
    NodeError::unreachable(format!("the counters were changed by others {TRIES_MAX} times in between"))
}

#[async_trait]
impl LockNode for EtcdNode {
    fn name(&self) -> &str {
        self.gateway.name()
    }

    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        limited(async {
            let (prefix, resources) = (ownership.prefix(), ownership.resources());
            let mut lease = None;
            for _ in 0..TRIES_MAX {
                let found = self.see(prefix, resources).await?;
                for (resource, one) in resources.iter().zip(&found) {
                    if let Some(owner) = &one.owner {
                        return Ok(Acquisition::Held(held_by(resource, owner)));
                    }
                }
                let granted = found.iter().map(|one| one.counter).fold(floor, u64::max).saturating_add(1);
                // Made only when it is needed; one that is not used ends by itself.
                let lease = match &lease {
                    Some(lease) => lease,
                    None => lease.insert(self.gateway.lease(ttl.as_duration()).await?),
                };
                let mut compare = Vec::with_capacity(2 * resources.len());
                let mut put = Vec::with_capacity(2 * resources.len());
                for (resource, one) in resources.iter().zip(&found) {
                    let (lock, counter) = (lock(prefix, resource), counter(prefix, resource));
                    compare.push(Compare::Absent(lock.clone()));
                    compare.push(Compare::Version(counter.clone(), one.counter_version));
                    put.push(Operation::Put(lock, ownership.owner().expose().to_owned(), Some(lease.clone())));
                    put.push(Operation::Put(counter, granted.to_string(), None));
                }
                if self.gateway.transaction(&compare, put, Vec::new()).await?.succeeded {
                    return Ok(Acquisition::Granted { counter: granted });
                }
            }
            Err(too_busy())
        })
        .await
    }

    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<Raising, NodeError> {
        limited(async {
            let (prefix, resources) = (ownership.prefix(), ownership.resources());
            for _ in 0..TRIES_MAX {
                let found = self.see(prefix, resources).await?;
                if !standing(&found, ownership).0 {
                    return Ok(Raising::NotOwner);
                }
                let (mut compare, mut put) = (Vec::new(), Vec::new());
                for (resource, one) in resources.iter().zip(&found) {
                    let key = counter(prefix, resource);
                    if one.counter < to {
                        put.push(Operation::Put(key.clone(), to.to_string(), None));
                    }
                    compare.push(Compare::Version(key, one.counter_version));
                }
                if self.as_holder(ownership, compare, put).await?.succeeded {
                    return Ok(Raising::At(found.iter().map(|one| one.counter).fold(to, u64::max)));
                }
            }
            Err(too_busy())
        })
        .await
    }

    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<Extension, NodeError> {
        limited(async {
            // A lease keeps the length it was made with, so there is a new one; the old one ends without a key.
            let lease = self.gateway.lease(ttl.as_duration()).await?;
            let owner = ownership.owner().expose();
            let locks = ownership.resources().iter().map(|resource| lock(ownership.prefix(), resource));
            let put = locks.map(|key| Operation::Put(key, owner.to_owned(), Some(lease.clone()))).collect();
            let answer = self.as_holder(ownership, Vec::new(), put).await?;
            Ok(match answer.succeeded {
                true => Extension::Extended,
                false if standing(&seen(&answer)?, ownership).1 => Extension::NotOwner,
                false => Extension::Gone,
            })
        })
        .await
    }

    async fn release(&self, ownership: &Ownership) -> Result<Releasing, NodeError> {
        limited(async {
            for _ in 0..TRIES_MAX {
                let found = self.see(ownership.prefix(), ownership.resources()).await?;
                let mine = ownership.resources().iter().zip(&found);
                let mine = mine.filter(|(_, one)| one.owner.as_deref() == Some(ownership.owner().expose()));
                let mine: Vec<String> = mine.map(|(resource, _)| lock(ownership.prefix(), resource)).collect();
                let compare = mine.iter().map(|key| Compare::Value(key.clone(), ownership.owner().expose().to_owned()));
                let compare: Vec<Compare> = compare.collect();
                let delete = mine.into_iter().map(Operation::Delete).collect();
                if compare.is_empty() || self.gateway.transaction(&compare, delete, Vec::new()).await?.succeeded {
                    return Ok(match standing(&found, ownership) {
                        (true, _) => Releasing::Released,
                        (false, true) => Releasing::NotOwner,
                        (false, false) => Releasing::Gone,
                    });
                }
            }
            Err(too_busy())
        })
        .await
    }

    async fn inspect(&self, prefix: &KeyPrefix, resources: &Resources) -> Result<Vec<Inspection>, NodeError> {
        let found = limited(self.see(prefix, resources)).await?;
        let inspect = |(resource, one): (&Resource, Seen)| Inspection {
            resource: resource.clone(),
            held: one.owner.map(|owner| held_by(resource, &owner)),
            counter: (one.counter_version != 0).then_some(one.counter),
        };
        Ok(resources.iter().zip(found).map(inspect).collect())
    }

    async fn health(&self) -> Result<Health, NodeError> {
        let status = limited(self.gateway.status()).await?;
        let mut health = Health::default();
        health.identity = Some(self.identity.to_string());
        health.primary = Some(true);
        health.version = Some(status.version);
        health.persistence = Some("write-ahead log".to_owned());
        health.eviction_policy = Some("none".to_owned());
        health
            .unread
            .push("clock and replicas: etcd does not tell the one, and the others have no vote of their own".into());
        Ok(health)
    }

    fn identity(&self) -> Option<Arc<str>> {
        Some(Arc::clone(&self.identity))
    }
}

impl fmt::Debug for EtcdNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdNode").field("name", &self.name()).finish_non_exhaustive()
    }
}
