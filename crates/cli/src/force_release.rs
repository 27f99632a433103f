//! `redlock force-release`: breaks a lock, after saying whose.
//!
//! What is released is what was shown: each node is asked to release the very owner that was seen there, so that a successor who
//! comes in between keeps its lock, and waiters are called as by any release. The holder hears of it with its next renewal; until
//! then it works on, and only a fence tells it from its successor.

use crate::exit::{Exit, Failure, NodeSaid, with_causes};
use crate::options::{Common, ForceReleaseOptions};
use crate::output::Output;
use crate::quorum;
use crate::remote::PATIENCE;
use crate::settings::Settings;
use crate::survey::{self, State, Survey, Verdict};
use crate::{inspect, table::clean};
use futures_util::future::join_all;
use redlock_backends::redis::KeyNames;
use redlock_core::tally::quorum_of;
use redlock_core::{Ownership, Releasing};
use serde::Serialize;
use std::io::{BufRead as _, Write as _};

#[derive(Serialize)]
struct Broken<'a> {
    resource: &'a str,
    broken: usize,
    nodes: Vec<NodeSaid>,
}

/// Breaks a lock.
///
/// # Errors
/// [`Exit::Declined`] if nobody says yes, [`Exit::Misconfigured`] if the key is no lock, [`Exit::Unavailable`] if too few nodes
/// could be told.
///
/// # Cancel safety
/// Some nodes may have released.
pub async fn force_release(options: ForceReleaseOptions, common: &Common, output: &Output) -> Result<u8, Failure> {
    let settings = Settings::gather(common)?;
    let resource = survey::resource(&options.resource)?;
    let survey = Survey::begin(&settings).await?;
    let seen = survey.look_at(std::slice::from_ref(&resource)).await.remove(0);
    let name = clean(resource.name());
    if seen.nodes.iter().any(|node| matches!(node.state, State::Foreign { .. })) {
        let message =
            format!("{name} is data of another kind on some nodes, so no lock; look at it with `redlock inspect`");
        return Err(Failure::new(Exit::Misconfigured, message));
    }
    if !seen.nodes.iter().any(|node| matches!(node.state, State::Held { .. })) {
        if seen.verdict != Verdict::Free {
            return Err(Failure::new(Exit::Unavailable, format!("too few nodes say whether {name} is held")));
        }
        let broken = Broken { resource: resource.name(), broken: 0, nodes: Vec::new() };
        output.result(&broken, || format!("{name} is free"))?;
        return Ok(0);
    }
    let is_strange = |state: &State| matches!(state, State::Held { owner, .. } if owner.owner().is_none());
    if seen.nodes.iter().any(|node| is_strange(&node.state)) {
        let keys = KeyNames::of(&survey::prefix(&settings)?, &resource);
        let message = format!(
            "what holds {name} is no text, so no owner of this library's: whoever has written it has to release it, or \
             somebody has to delete the key {} on each node",
            clean(&keys.lock)
        );
        return Err(Failure::new(Exit::Misconfigured, message));
    }
    if !options.yes {
        ask(&inspect::screen(&seen), *output)?;
    }

    let nodes = quorum::open(&settings)?;
    let prefix = survey::prefix(&settings)?;
    let told = nodes.iter().zip(&seen.nodes).map(async |(node, seen)| {
        let State::Held { owner, .. } = &seen.state else { return None };
        let ownership = Ownership::new(prefix.clone(), resource.clone().into(), owner.owner()?.clone());
        let answer = tokio::time::timeout(PATIENCE, node.release(&ownership)).await;
        Some(match answer {
            Ok(Ok(Releasing::Released | Releasing::PassedOn)) => Ok("broken"),
            Ok(Ok(Releasing::Gone)) => Ok("gone by itself meanwhile"),
            Ok(Ok(Releasing::NotOwner)) => Ok("gone, and somebody else holds it now"),
            Ok(Err(error)) => Err(with_causes(&error)),
            Err(_) => Err(format!("no answer within {PATIENCE:?}")),
        })
    });
    let told = join_all(told).await;
    let mut said = Vec::new();
    for (node, answer) in nodes.iter().zip(&told) {
        let words = match answer {
            Some(Ok(words)) => (*words).to_owned(),
            Some(Err(error)) => error.clone(),
            None => continue,
        };
        said.push(NodeSaid { node: node.name().to_owned(), said: words });
    }
    let broken = told.iter().filter(|answer| matches!(answer, Some(Ok("broken")))).count();
    let untold = told.iter().filter(|answer| matches!(answer, Some(Err(_)))).count();
    if quorum_of(nodes.len()) <= untold {
        let message = format!("{name} was broken on {broken} nodes; too many others could not be told");
        return Err(Failure { exit: Exit::Unavailable, message, nodes: said });
    }
    let result = Broken { resource: resource.name(), broken, nodes: said };
    output.result(&result, || format!("{name} was broken on {broken} of {} nodes", nodes.len()))?;
    Ok(0)
}

/// Asks whoever sits there, on the stream of errors, so that results stay results.
fn ask(screen: &str, output: Output) -> Result<(), Failure> {
    let declined = |message: &str| Err(Failure::new(Exit::Declined, message));
    if output.is_json() {
        return declined("nothing was done: with --json nobody is asked, so give --yes");
    }
    let mut stderr = std::io::stderr().lock();
    let question = "Break this lock? Its holder works on until its next renewal, and a fence alone stops what it writes\n\
                    after its successor has. [y/N] ";
    // If nobody sees the question, nobody says yes.
    let _ = write!(stderr, "{screen}\n{question}").and_then(|()| stderr.flush());
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        "" => declined("nothing was done: nobody said yes (--yes does)"),
        _ => declined("nothing was done"),
    }
}
