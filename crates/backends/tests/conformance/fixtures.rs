//! How the kit reaches the nodes of this package.

use async_trait::async_trait;
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "sqlite"))]
use futures_util::StreamExt as _;
use redlock_backends::MemoryNode;
use redlock_core::conformance::Fixture;
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "sqlite"))]
use redlock_core::conformance::{Kept, PROMISES, Promise};
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

/// Checks all promises on one server, side by side where they do not disturb each other, and says which are not offered.
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(crate) async fn not_offered(fixture: &dyn Fixture) -> Vec<&'static str> {
    /// Most of the time is spent in waiting for the ends of locks; more at once would wait for the server's disk.
    const AT_ONCE: usize = 12;
    const DISTURBING: [&str; 3] =
        ["the_node_comes_back_after_its_connections_broke", "a_call_is_made_once", "a_call_ends_though_nobody_answers"];
    let (disturbing, others): (Vec<_>, Vec<_>) =
        PROMISES.iter().partition(|promise| DISTURBING.contains(&promise.name));
    assert_eq!(disturbing.len(), DISTURBING.len());
    let check = async |promise: &Promise| match promise.check(fixture).await {
        Ok(Kept::Yes) => None,
        Ok(Kept::NotOffered(_)) => Some(promise.name),
        Err(broken) => panic!("{broken}"),
    };
    let checks = futures_util::stream::iter(others.into_iter().map(check)).buffered(AT_ONCE);
    let mut not_offered: Vec<_> = checks.collect().await;
    for promise in disturbing {
        not_offered.push(check(promise).await);
    }
    not_offered.into_iter().flatten().collect()
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

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod on_sql {
    use super::*;
    use redlock_bench::Proxy;
    use redlock_bench::proxy::Mode;
    use std::any::Any;
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// As many as one promise uses at once: to connect is slow.
    pub(super) const CONNECTIONS: usize = 5;

    /// A real database server, reached through a relay that can be cut and silenced.
    pub(crate) struct OnServer {
        _server: Box<dyn Any + Send + Sync>,
        address: SocketAddr,
        proxy: Proxy,
        connections: Vec<Arc<dyn LockNode>>,
        next: AtomicUsize,
    }

    impl OnServer {
        /// A relay to the server of a URL, and nobody connected through it yet.
        pub(super) async fn relay(url: String, server: impl Any + Send + Sync) -> Self {
            let address: SocketAddr = url.split(['@', '/']).nth(3).unwrap().parse().unwrap();
            let proxy = Proxy::start(address).await.unwrap();
            Self { _server: Box::new(server), address, proxy, connections: Vec::new(), next: AtomicUsize::new(0) }
        }

        pub(super) fn through(&self) -> SocketAddr {
            self.proxy.address()
        }

        pub(super) fn add(&mut self, node: impl LockNode + 'static) {
            self.connections.push(Arc::new(node));
        }
    }

    #[async_trait]
    impl Fixture for OnServer {
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

/// A Postgres server with its connections.
#[cfg(feature = "postgres")]
pub(crate) async fn on_postgres() -> on_sql::OnServer {
    use redlock_backends::PostgresNode;
    let server = redlock_bench::sql::Postgres::start().unwrap();
    let mut fixture = on_sql::OnServer::relay(server.url().to_owned(), server).await;
    let url = format!("postgres://postgres@{}/postgres", fixture.through());
    for _ in 0..on_sql::CONNECTIONS {
        let node = PostgresNode::connect(&url).await.unwrap();
        // Once would do; more often must do no harm.
        node.install().await.unwrap();
        fixture.add(node);
    }
    fixture
}

/// A MariaDB server with its connections.
#[cfg(feature = "mysql")]
pub(crate) async fn on_mysql() -> on_sql::OnServer {
    use redlock_backends::MySqlNode;
    let server = redlock_bench::sql::MariaDb::start().unwrap();
    let mut fixture = on_sql::OnServer::relay(server.url().to_owned(), server).await;
    let url = format!("mysql://root@{}/mysql", fixture.through());
    // Once would do; more often must do no harm.
    MySqlNode::install(&url).await.unwrap();
    MySqlNode::install(&url).await.unwrap();
    for _ in 0..on_sql::CONNECTIONS {
        fixture.add(MySqlNode::connect(&url).await.unwrap());
    }
    fixture
}

#[cfg(feature = "etcd")]
pub(crate) use self::on_etcd::OnEtcd;

#[cfg(feature = "etcd")]
mod on_etcd {
    use super::*;
    use redlock_backends::EtcdNode;
    use redlock_bench::proxy::Mode;
    use redlock_bench::{EtcdServer, Proxy};

    /// A real server, reached through a relay that can be cut and silenced.
    pub(crate) struct OnEtcd {
        server: EtcdServer,
        proxy: Proxy,
    }

    impl OnEtcd {
        pub(crate) async fn start() -> Self {
            let server = EtcdServer::start().await.unwrap();
            Self { proxy: Proxy::start(server.address()).await.unwrap(), server }
        }
    }

    #[async_trait]
    impl Fixture for OnEtcd {
        async fn connect(&self) -> Arc<dyn LockNode> {
            Arc::new(EtcdNode::connect(&format!("http://{}", self.proxy.address())).await.unwrap())
        }

        /// The shortest lease is two seconds, what has ended is looked for every half second, and one second is for rounding.
        fn lateness(&self) -> Duration {
            Duration::from_millis(4_000)
        }

        async fn disconnect(&self) -> bool {
            self.proxy.lead_to(self.server.address()).await.unwrap();
            true
        }

        async fn silence(&self, silent: bool) -> bool {
            self.proxy.set(if silent { Mode::Silent } else { Mode::PASS }).await.unwrap();
            true
        }
    }
}

#[cfg(feature = "sqlite")]
pub(crate) use self::on_sqlite::OnSqlite;

#[cfg(feature = "sqlite")]
mod on_sqlite {
    use super::*;
    use redlock_backends::SqliteNode;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// As many as one promise uses at once; each is another program's, as far as the file can tell.
    const CONNECTIONS: usize = 5;

    /// A file of one's own.
    pub(crate) struct OnSqlite {
        _folder: tempfile::TempDir,
        connections: Vec<Arc<dyn LockNode>>,
        next: AtomicUsize,
    }

    impl OnSqlite {
        pub(crate) async fn start() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let url = format!("sqlite:{}?mode=rwc", folder.path().join("locks.db").display());
            let mut connections = Vec::new();
            for _ in 0..CONNECTIONS {
                connections.push(Arc::new(SqliteNode::open(&url).await.unwrap()) as Arc<dyn LockNode>);
            }
            Self { _folder: folder, connections, next: AtomicUsize::new(0) }
        }
    }

    #[async_trait]
    impl Fixture for OnSqlite {
        async fn connect(&self) -> Arc<dyn LockNode> {
            Arc::clone(&self.connections[self.next.fetch_add(1, Ordering::Relaxed) % CONNECTIONS])
        }

        /// Who waits for the file looks at intervals of up to a tenth of a second.
        fn lateness(&self) -> Duration {
            Duration::from_secs(2)
        }
    }
}
