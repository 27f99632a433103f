//! A node on etcd, whatever the cluster is like.

use crate::support::{LONG, ownership, refusal, serves, takes, ttl};
use redlock_backends::EtcdNode;
use redlock_bench::ports::free_port;
use redlock_bench::proxy::{Lane, Mode};
use redlock_bench::{EtcdServer, Process, Proxy, eventually};
use redlock_core::{Acquisition, LockNode as _, NodeError, Refusal};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const START_DEADLINE: Duration = Duration::from_secs(30);

/// A cluster as etcd makes it that is told nothing: its name, and what it tells others, are the same everywhere.
struct SetUpAlike {
    url: String,
    process: Process,
}

impl SetUpAlike {
    async fn start(folder: &Path) -> (Self, EtcdNode) {
        let url = format!("http://127.0.0.1:{}", free_port());
        let peers = format!("http://127.0.0.1:{}", free_port());
        let process = Process::spawn("etcd", |command| {
            command.arg("--data-dir").arg(folder);
            command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url, "--listen-peer-urls", &peers]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        })
        .unwrap();
        let node = eventually(START_DEADLINE, || EtcdNode::connect(&url)).await.unwrap();
        (Self { url, process }, node)
    }
}

#[tokio::test]
async fn clusters_that_were_set_up_alike_are_two() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (one, node) = SetUpAlike::start(folders[0].path()).await;
    let (_other, stranger) = SetUpAlike::start(folders[1].path()).await;
    assert_ne!(node.identity(), stranger.identity());
    // And each is one, whoever asks.
    assert_eq!(EtcdNode::connect(&one.url).await.unwrap().identity(), node.identity());
    assert_eq!(node.health().await.unwrap().identity.as_deref(), node.identity().as_deref());
}

#[tokio::test]
async fn a_cluster_that_was_killed_remembers() {
    let folder = tempfile::tempdir().unwrap();
    let (server, node) = SetUpAlike::start(folder.path()).await;
    let identity = node.identity();
    let (holder, next) = (ownership("o", "held"), ownership("p", "held"));
    takes(&node, &holder, 100).await;
    let free = ownership("o", "free");
    takes(&node, &free, 200).await;
    node.release(&free).await.unwrap();
    server.process.kill();
    let (_server, node) = SetUpAlike::start(folder.path()).await;
    assert_eq!(node.identity(), identity);
    assert!(matches!(node.acquire(&next, ttl(LONG), 0).await, Ok(Acquisition::Held(_))));
    assert_eq!(takes(&node, &free, 0).await, 202);
    serves(&node).await;
}

/// Asks the cluster itself, past the node.
async fn ask(url: &str, path: &str, question: Value) -> Value {
    let request = reqwest::Client::new().post(format!("{url}/v3/{path}")).body(question.to_string());
    serde_json::from_str(&request.send().await.unwrap().text().await.unwrap()).unwrap()
}

#[tokio::test]
async fn a_lease_that_ended_too_early_is_no_matter_of_the_set_up() {
    let server = EtcdServer::start().await.unwrap();
    let proxy = Proxy::start(server.address()).await.unwrap();
    let node = EtcdNode::connect(&proxy.url().replace("redis:", "http:")).await.unwrap();
    let url = format!("http://{}", server.address());
    proxy.set(Mode::requests(Lane::Delay(Duration::from_secs(1)))).await.unwrap();
    let revokes = async {
        let id = eventually(START_DEADLINE, || async {
            let leases = ask(&url, "lease/leases", json!({})).await;
            leases["leases"][0]["ID"].as_str().map(str::to_owned).ok_or("no lease yet")
        });
        ask(&url, "lease/revoke", json!({"ID": id.await.unwrap()})).await
    };
    let who = ownership("o", "r");
    let (answer, _) = tokio::join!(node.acquire(&who, ttl(LONG), 0), revokes);
    assert!(matches!(answer, Err(NodeError::Unreachable(_))), "{answer:?}");
    proxy.set(Mode::PASS).await.unwrap();
    takes(&node, &who, 0).await;
}

#[tokio::test]
async fn a_cluster_that_wants_users_says_so() {
    let server = EtcdServer::start().await.unwrap();
    let url = format!("http://{}", server.address());
    let node = EtcdNode::connect(&url).await.unwrap();
    ask(&url, "auth/user/add", json!({"name": "root", "password": "sesame"})).await;
    ask(&url, "auth/role/add", json!({"name": "root"})).await;
    ask(&url, "auth/user/grant", json!({"user": "root", "role": "root"})).await;
    ask(&url, "auth/enable", json!({})).await;
    let who = ownership("o", "r");
    let (reason, said) = refusal(node.acquire(&who, ttl(LONG), 0).await);
    assert_eq!(reason, Refusal::Authentication, "{said}");
    assert_eq!(refusal(node.release(&who).await).0, Refusal::Authentication);
    assert_eq!(refusal(EtcdNode::connect(&url).await).0, Refusal::Authentication);
}
