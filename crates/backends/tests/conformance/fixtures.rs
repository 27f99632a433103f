//! How the kit reaches the nodes of this package.

use async_trait::async_trait;
use redlock_backends::MemoryNode;
use redlock_core::conformance::Fixture;
use redlock_core::{Clock, LockNode, Moment};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A clock that goes when the kit lets time pass, and stands still otherwise.
#[derive(Debug, Default)]
pub(crate) struct HandClock(Mutex<Duration>);

impl HandClock {
    pub(crate) fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

impl Clock for HandClock {
    fn now(&self) -> Moment {
        Moment::from_origin(*self.0.lock().unwrap())
    }
}

/// A node in memory whose time passes at once.
pub(crate) struct InMemory {
    clock: Arc<HandClock>,
    node: Arc<MemoryNode>,
}

impl InMemory {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(HandClock::default());
        Self { node: Arc::new(MemoryNode::with_clock("memory", Arc::clone(&clock) as _)), clock }
    }
}

#[async_trait]
impl Fixture for InMemory {
    async fn connect(&self) -> Arc<dyn LockNode> {
        Arc::clone(&self.node) as _
    }

    async fn let_pass(&self, duration: Duration) {
        self.clock.advance(duration);
        tokio::task::yield_now().await;
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as _
    }

    fn lateness(&self) -> Duration {
        Duration::ZERO
    }
}

#[cfg(feature = "redis")]
pub(crate) use self::on_redis::OnRedis;

#[cfg(feature = "redis")]
mod on_redis {
    use super::*;
    use redlock_backends::RedisNode;
    use redlock_bench::proxy::Mode;
    use redlock_bench::{Proxy, RedisOptions, RedisServer};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A real server, reached through a relay of one's own that can be cut and silenced. What the kit leaves goes with
    /// the server.
    pub(crate) struct OnRedis {
        server: Arc<RedisServer>,
        proxy: Option<Proxy>,
        connections: Vec<Arc<dyn LockNode>>,
        next: AtomicUsize,
    }

    /// As many as one promise uses at once, so that a hundred runs do not spend their time on connecting.
    const CONNECTIONS: usize = 5;

    impl OnRedis {
        pub(crate) async fn start() -> Self {
            Self::on(Arc::new(RedisServer::start(RedisOptions::new()).await.unwrap())).await
        }

        pub(crate) async fn on(server: Arc<RedisServer>) -> Self {
            let proxy = Proxy::start(server.address()).await.unwrap();
            let url = proxy.url();
            Self::with_connections(server, Some(proxy), &url)
        }

        /// Without a relay, which costs more than all the rest.
        pub(crate) fn directly_on(server: Arc<RedisServer>) -> Self {
            let url = server.url();
            Self::with_connections(server, None, &url)
        }

        fn with_connections(server: Arc<RedisServer>, proxy: Option<Proxy>, url: &str) -> Self {
            let connections = (0..CONNECTIONS).flat_map(|_| RedisNode::open_all([url]).unwrap()).collect();
            Self { server, proxy, connections, next: AtomicUsize::new(0) }
        }
    }

    #[async_trait]
    impl Fixture for OnRedis {
        async fn connect(&self) -> Arc<dyn LockNode> {
            Arc::clone(&self.connections[self.next.fetch_add(1, Ordering::Relaxed) % CONNECTIONS])
        }

        async fn disconnect(&self) -> bool {
            let Some(proxy) = &self.proxy else { return false };
            proxy.lead_to(self.server.address()).await.unwrap();
            true
        }

        async fn silence(&self, silent: bool) -> bool {
            let mode = if silent { Mode::Silent } else { Mode::PASS };
            let Some(proxy) = &self.proxy else { return false };
            proxy.set(mode).await.unwrap();
            true
        }
    }
}

#[cfg(feature = "postgres")]
pub(crate) use self::on_postgres::OnPostgres;

#[cfg(feature = "postgres")]
mod on_postgres {
    use super::*;
    use redlock_backends::PostgresNode;
    use redlock_bench::Proxy;
    use redlock_bench::proxy::Mode;
    use redlock_bench::sql::Postgres;
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// As many as one promise uses at once: to connect is slow.
    const CONNECTIONS: usize = 5;

    /// A real server, reached through a relay that can be cut and silenced.
    pub(crate) struct OnPostgres {
        _server: Postgres,
        address: SocketAddr,
        proxy: Proxy,
        connections: Vec<Arc<dyn LockNode>>,
        next: AtomicUsize,
    }

    impl OnPostgres {
        pub(crate) async fn start() -> Self {
            let server = Postgres::start().unwrap();
            let address: SocketAddr = server.url().split(['@', '/']).nth(3).unwrap().parse().unwrap();
            let proxy = Proxy::start(address).await.unwrap();
            let url = format!("postgres://postgres@{}/postgres", proxy.address());
            let mut connections = Vec::new();
            for _ in 0..CONNECTIONS {
                let node = PostgresNode::connect(&url).await.unwrap();
                // Once would do; more often must do no harm.
                node.install().await.unwrap();
                connections.push(Arc::new(node) as Arc<dyn LockNode>);
            }
            Self { _server: server, address, proxy, connections, next: AtomicUsize::new(0) }
        }
    }

    #[async_trait]
    impl Fixture for OnPostgres {
        async fn connect(&self) -> Arc<dyn LockNode> {
            Arc::clone(&self.connections[self.next.fetch_add(1, Ordering::Relaxed) % CONNECTIONS])
        }

        async fn disconnect(&self) -> bool {
            self.proxy.lead_to(self.address).await.unwrap();
            true
        }

        async fn silence(&self, silent: bool) -> bool {
            self.proxy.set(if silent { Mode::Silent } else { Mode::PASS }).await.unwrap();
            true
        }
    }
}
