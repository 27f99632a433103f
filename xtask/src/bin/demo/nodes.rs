//! What the lock is made of: servers that the demo starts, servers it was given, or nodes in its own memory.
//!
//! Whichever they are, clients in any process reach them over sockets ([`Way`]), and each can be taken away and brought
//! back.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use redlock_backends::RedisNode;
use redlock_bench::proxy::Mode;
use redlock_bench::{BenchError, Proxy, Servers};
use redlock_core::{KeyPrefix, LockNode, Resource, Resources};
use serde::{Deserialize, Serialize};

use crate::address::Given;
use crate::telling::causes;
use crate::wire::{Host, WireNode};

/// Stands before every key of the demo.
pub(crate) const PREFIX: &str = "redlock-demo:";

/// How many nodes the demo starts by itself.
const STARTED: usize = 5;

/// The nodes of the story.
#[derive(Debug)]
pub(crate) struct Nodes {
    kind: Kind,
    labels: Vec<String>,
}

#[derive(Debug)]
enum Kind {
    Started(Servers),
    Given { urls: Vec<String>, relays: Vec<Proxy> },
    InMemory { hosts: Vec<Host>, why: String },
}

/// How a client reaches the nodes. Travels to the other process; may hold passwords, so it has no `Debug`.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Way {
    Redis(Vec<String>),
    Wire(Vec<SocketAddr>),
}

impl Way {
    pub(crate) async fn connect(&self) -> Result<Vec<Arc<dyn LockNode>>> {
        match self {
            Self::Redis(urls) => Ok(RedisNode::connect_all(urls.iter().map(String::as_str)).await?),
            Self::Wire(addresses) => {
                let mut nodes: Vec<Arc<dyn LockNode>> = Vec::new();
                for address in addresses {
                    nodes.push(Arc::new(WireNode::connect(*address).await));
                }
                Ok(nodes)
            }
        }
    }
}

impl Nodes {
    /// Starts five servers, or five in-memory nodes where no server is installed.
    pub(crate) async fn start() -> Result<Self> {
        match Servers::start(STARTED).await {
            Ok(servers) => {
                let labels = servers.iter().map(|server| server.address().to_string()).collect();
                Ok(Self { kind: Kind::Started(servers), labels })
            }
            Err(why @ BenchError::NotInstalled { .. }) => Self::start_in_memory(why.to_string()).await,
            Err(error) => Err(error.into()),
        }
    }

    async fn start_in_memory(why: String) -> Result<Self> {
        let mut hosts = Vec::new();
        for _ in 0..STARTED {
            hosts.push(Host::start().await?);
        }
        let labels = hosts.iter().map(|host| host.address().to_string()).collect();
        Ok(Self { kind: Kind::InMemory { hosts, why }, labels })
    }

    /// Takes given servers, with a relay in front of each.
    pub(crate) async fn given(texts: &[String]) -> Result<Self> {
        let (mut urls, mut relays, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        for text in texts {
            let given = Given::new(text)?;
            let relay = Proxy::start(given.address()?).await?;
            urls.push(given.through(relay.address())?);
            relays.push(relay);
            labels.push(given.label);
        }
        let nodes = Self { kind: Kind::Given { urls, relays }, labels };
        nodes.check_given().await?;
        Ok(nodes)
    }

    /// All of them must be there, and each be a server of its own.
    async fn check_given(&self) -> Result<()> {
        // Errors name the relay, which nobody knows.
        let named = |error: anyhow::Error| {
            let mut text = causes(&error);
            for (relay, label) in self.relays().iter().zip(&self.labels) {
                text = text.replace(&relay.address().to_string(), label);
            }
            anyhow!(text)
        };
        let nodes = self.way().connect().await.map_err(named)?;
        for (node, label) in nodes.iter().zip(&self.labels) {
            node.health().await.with_context(|| format!("{label}, which has to be up at first")).map_err(named)?;
        }
        Ok(())
    }

    /// For the facts.
    pub(crate) fn kind(&self) -> &'static str {
        match &self.kind {
            Kind::Started(_) => "redis",
            Kind::Given { .. } => "given",
            Kind::InMemory { .. } => "in-memory",
        }
    }

    /// What people call them, in order.
    pub(crate) fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Why they are in memory, if they are.
    pub(crate) fn why_in_memory(&self) -> Option<&str> {
        match &self.kind {
            Kind::InMemory { why, .. } => Some(why),
            _ => None,
        }
    }

    /// What happens to a node that is killed.
    pub(crate) fn manner_of_killing(&self) -> &'static str {
        match &self.kind {
            Kind::Started(_) => "SIGKILL. What they knew is gone with them.",
            Kind::Given { .. } => {
                "Given servers are not the demo's to kill. The relay in front cuts all connections and closes its port, which \
                 looks the same."
            }
            Kind::InMemory { .. } => "Their ports are closed, and what they knew is wiped out.",
        }
    }

    /// What one comes back with.
    pub(crate) fn manner_of_return(&self) -> &'static str {
        match &self.kind {
            Kind::Started(_) | Kind::InMemory { .. } => "They come back empty, on the same ports.",
            Kind::Given { .. } => "The relays open their ports again.",
        }
    }

    /// The name that is locked: one that no other demo uses on the same servers.
    pub(crate) fn resource(&self, run: &str) -> String {
        match &self.kind {
            Kind::Given { .. } => format!("accounts/42/{run}"),
            Kind::Started(_) | Kind::InMemory { .. } => "accounts/42".to_owned(),
        }
    }

    pub(crate) fn way(&self) -> Way {
        match &self.kind {
            Kind::Started(servers) => Way::Redis(servers.urls()),
            Kind::Given { urls, .. } => Way::Redis(urls.clone()),
            Kind::InMemory { hosts, .. } => Way::Wire(hosts.iter().map(Host::address).collect()),
        }
    }

    pub(crate) async fn kill(&self, node: usize) -> Result<()> {
        match &self.kind {
            Kind::Started(servers) => servers[node].kill(),
            Kind::Given { relays, .. } => relays[node].set(Mode::Refuse).await?,
            Kind::InMemory { hosts, .. } => hosts[node].kill().await,
        }
        Ok(())
    }

    pub(crate) async fn bring_back(&self, node: usize) -> Result<()> {
        match &self.kind {
            Kind::Started(servers) => servers[node].restart().await?,
            Kind::Given { relays, .. } => relays[node].pass().await?,
            Kind::InMemory { hosts, .. } => hosts[node].restart().await?,
        }
        Ok(())
    }

    /// How many lock keys there are on all nodes together. The ones of one's own are looked at directly.
    pub(crate) async fn lock_keys(&self, resource: &str) -> Result<usize> {
        match &self.kind {
            Kind::Started(servers) => {
                let keys = servers.keys("*").await?.concat();
                // Counters and records, which are to stay, begin with `~` behind the prefix.
                let is_lock = |key: &&String| !key.strip_prefix(PREFIX).is_some_and(|name| name.starts_with('~'));
                Ok(keys.iter().filter(is_lock).count())
            }
            Kind::Given { .. } => self.held(resource).await,
            Kind::InMemory { hosts, .. } => Ok(hosts.iter().map(Host::locks).sum()),
        }
    }

    /// On how many nodes the resource is held.
    pub(crate) async fn held(&self, resource: &str) -> Result<usize> {
        let resources: Resources = Resource::new(resource)?.into();
        let mut held = 0;
        for (node, label) in self.way().connect().await?.iter().zip(&self.labels) {
            match node.inspect(&KeyPrefix::new(PREFIX)?, &resources).await {
                Ok(inspections) => held += inspections.iter().filter(|inspection| inspection.held.is_some()).count(),
                Err(error) => bail!("nobody knows what {label} holds: {error}"),
            }
        }
        Ok(held)
    }

    fn relays(&self) -> &[Proxy] {
        match &self.kind {
            Kind::Given { relays, .. } => relays,
            _ => &[],
        }
    }
}
