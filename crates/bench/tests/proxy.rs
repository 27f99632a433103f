//! The proxy, mode by mode, in front of a real server.

use std::error::Error;
use std::time::Duration;

use redlock_bench::proxy::{Lane, Mode};
use redlock_bench::{BenchError, Probe, Proxy, RedisOptions, RedisServer, Reply, eventually};
use tokio::time::Instant;

type Outcome = Result<(), Box<dyn Error>>;

const DELAY: Duration = Duration::from_millis(60);
const SHORT: Duration = Duration::from_millis(40);

async fn behind_a_proxy() -> Result<(RedisServer, Proxy, Probe), BenchError> {
    let server = RedisServer::start(RedisOptions::new()).await?;
    let proxy = Proxy::start(server.address()).await?;
    let probe = Probe::new(proxy.address());
    Ok((server, proxy, probe))
}

fn pong() -> Reply {
    Reply::Status("PONG".into())
}

#[tokio::test]
async fn everything_passes_at_first_over_counted_connections() -> Outcome {
    let (_server, proxy, mut probe) = behind_a_proxy().await?;
    assert_eq!(proxy.connections(), 0);
    for _ in 0..3 {
        assert_eq!(probe.command(&["PING"]).await?, pong());
    }
    assert_eq!(proxy.connections(), 1);
    let large = "x".repeat(1_000_000);
    probe.command(&["SET", "large", &large]).await?;
    assert_eq!(probe.get("large").await?, Some(large));
    Ok(())
}

#[tokio::test]
async fn a_delayed_request_takes_effect_later_and_a_delayed_reply_is_heard_later() -> Outcome {
    for mode in [Mode::requests(Lane::Delay(DELAY)), Mode::replies(Lane::Delay(DELAY))] {
        let (server, proxy, mut probe) = behind_a_proxy().await?;
        probe.command(&["PING"]).await?;
        proxy.set(mode).await?;

        let started = Instant::now();
        let mut asked = Box::pin(probe.command(&["SET", "k", "v"]));
        assert!(tokio::time::timeout(DELAY / 3, &mut asked).await.is_err(), "{mode:?}");
        let arrived_early = server.probe().get("k").await?.is_some();
        assert_eq!(arrived_early, mode == Mode::replies(Lane::Delay(DELAY)), "{mode:?}");
        asked.await?;
        assert!(DELAY <= started.elapsed(), "{mode:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_delay_is_a_long_cable_and_not_a_queue() -> Outcome {
    let (_server, proxy, _) = behind_a_proxy().await?;
    proxy.set(Mode::requests(Lane::Delay(DELAY))).await?;
    let connection = tokio::net::TcpStream::connect(proxy.address()).await?;
    let (mut answers, mut questions) = connection.into_split();
    let started = Instant::now();
    let ask = async {
        for _ in 0..10 {
            tokio::io::AsyncWriteExt::write_all(&mut questions, b"PING\r\n").await?;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok::<_, std::io::Error>(())
    };
    let hear = async {
        let mut heard = [0; 70];
        tokio::io::AsyncReadExt::read_exact(&mut answers, &mut heard).await?;
        Ok::<_, std::io::Error>(heard)
    };
    let (_, heard) = tokio::try_join!(ask, hear)?;
    assert_eq!(heard.as_slice(), b"+PONG\r\n".repeat(10));
    assert!(started.elapsed() < 5 * DELAY, "ten delays in a row: {:?}", started.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_swallowed_reply_leaves_the_command_done_and_the_connection_dead_until_the_mode_ends() -> Outcome {
    let (server, proxy, mut probe) = behind_a_proxy().await?;
    let mut raw = tokio::net::TcpStream::connect(proxy.address()).await?;
    proxy.set(Mode::replies(Lane::Swallow)).await?;
    tokio::io::AsyncWriteExt::write_all(&mut raw, b"INCR n\r\n").await?;
    eventually(Duration::from_secs(2), async || match server.probe().get("n").await {
        Ok(Some(_)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    assert!(heard_within(&mut raw, SHORT).await?.is_none(), "open and silent");

    proxy.pass().await?;
    assert_eq!(heard_within(&mut raw, SHORT).await?, Some(0), "closed");
    assert_eq!(probe.command(&["PING"]).await?, pong());
    Ok(())
}

#[tokio::test]
async fn a_swallowed_request_is_never_carried_out() -> Outcome {
    let (server, proxy, mut probe) = behind_a_proxy().await?;
    probe.command(&["PING"]).await?;
    proxy.set(Mode::requests(Lane::Swallow)).await?;
    let mut impatient = Probe::new(proxy.address()).deadline(SHORT);
    assert!(matches!(impatient.command(&["SET", "k", "v"]).await, Err(BenchError::NoAnswer { .. })));
    proxy.pass().await?;
    assert!(probe.command(&["PING"]).await.is_err(), "the old connection is closed");
    assert_eq!(probe.command(&["PING"]).await?, pong());
    assert_eq!(server.probe().get("k").await?, None);
    Ok(())
}

#[tokio::test]
async fn what_is_held_back_arrives_when_the_cut_heals() -> Outcome {
    let (server, proxy, mut probe) = behind_a_proxy().await?;
    probe.command(&["PING"]).await?;
    proxy.set(Mode::requests(Lane::Hold)).await?;
    let mut asked = Box::pin(probe.command(&["SET", "k", "v"]));
    assert!(tokio::time::timeout(SHORT, &mut asked).await.is_err());
    assert_eq!(server.probe().get("k").await?, None);
    proxy.pass().await?;
    asked.await?;
    assert_eq!(server.probe().get("k").await?, Some("v".into()));
    assert_eq!(proxy.connections(), 1);
    Ok(())
}

#[tokio::test]
async fn silence_accepts_and_never_answers() -> Outcome {
    let (server, proxy, mut probe) = behind_a_proxy().await?;
    let mut old = Probe::new(proxy.address()).deadline(SHORT);
    old.command(&["PING"]).await?;
    proxy.set(Mode::Silent).await?;
    let mut raw = tokio::net::TcpStream::connect(proxy.address()).await?;
    tokio::io::AsyncWriteExt::write_all(&mut raw, b"SET k v\r\n").await?;
    assert!(heard_within(&mut raw, SHORT).await?.is_none());
    assert!(matches!(old.command(&["PING"]).await, Err(BenchError::NoAnswer { .. })));

    proxy.pass().await?;
    assert!(!matches!(heard_within(&mut raw, SHORT).await, Ok(None)), "closed");
    assert_eq!(probe.command(&["PING"]).await?, pong());
    assert_eq!(server.probe().get("k").await?, None);
    Ok(())
}

#[tokio::test]
async fn refusing_closes_the_port_and_passing_opens_the_same_one() -> Outcome {
    let (_server, proxy, mut probe) = behind_a_proxy().await?;
    probe.command(&["PING"]).await?;
    for _ in 0..3 {
        proxy.set(Mode::Refuse).await?;
        assert!(probe.command(&["PING"]).await.is_err(), "the old connection is closed");
        let refused = tokio::net::TcpStream::connect(proxy.address()).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        proxy.pass().await?;
        assert_eq!(probe.command(&["PING"]).await?, pong());
    }
    Ok(())
}

#[tokio::test]
async fn the_proxy_can_lead_elsewhere() -> Outcome {
    let (first, proxy, mut probe) = behind_a_proxy().await?;
    let second = RedisServer::start(RedisOptions::new()).await?;
    assert_eq!(probe.info_field("run_id").await?, first.probe().info_field("run_id").await?);
    proxy.lead_to(second.address()).await?;
    assert!(probe.command(&["PING"]).await.is_err(), "the old connection is closed");
    assert_eq!(probe.info_field("run_id").await?, second.probe().info_field("run_id").await?);
    Ok(())
}

#[tokio::test]
async fn a_request_whose_client_has_gone_still_arrives() -> Outcome {
    let (server, proxy, _) = behind_a_proxy().await?;
    proxy.set(Mode::requests(Lane::Delay(DELAY))).await?;
    let mut impatient = Probe::new(proxy.address()).deadline(DELAY / 3);
    assert!(impatient.command(&["SET", "k", "v"]).await.is_err());
    drop(impatient);
    eventually(Duration::from_secs(2), async || match server.probe().get("k").await {
        Ok(Some(_)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_dropped_proxy_closes_everything() -> Outcome {
    let (_server, proxy, mut probe) = behind_a_proxy().await?;
    probe.command(&["PING"]).await?;
    let address = proxy.address();
    drop(proxy);
    assert!(probe.command(&["PING"]).await.is_err());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    Ok(())
}

/// How many bytes came within `patience`; 0 is the end of the connection, nothing that it is open and silent.
async fn heard_within(connection: &mut tokio::net::TcpStream, patience: Duration) -> std::io::Result<Option<usize>> {
    let mut buffer = [0; 64];
    match tokio::time::timeout(patience, tokio::io::AsyncReadExt::read(connection, &mut buffer)).await {
        Ok(read) => read.map(Some),
        Err(_) => Ok(None),
    }
}
