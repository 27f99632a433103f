//! Which node keeps the line of those who wait for a resource.
//!
//! Safety lives in the quorum; order lives on one node, so that contenders do not split the vote and are woken one at a
//! time. All clients have to agree on it without asking, so the order of nodes depends on the resource and on what the nodes
//! are, not on the order in which they were configured. Different resources have different arbiters, which spreads the load
//! (rendezvous hashing, Thaler and Ravishankar 1998). Where clients disagree, order is lost and nothing else.
//!
//! Pure. [`crate::waiting`] asks the first of them that can be used.

use crate::node::LockNode;
use crate::resource::Resources;

/// The nodes, by position, in the order in which they are to keep the line for `resources`.
pub(crate) fn order<'a>(resources: &Resources, nodes: impl Iterator<Item = &'a dyn LockNode>) -> Vec<usize> {
    let name = resources.iter().next().map_or("", |resource| resource.name());
    let mut ranked: Vec<(u64, usize)> = nodes.map(|node| rank(name, node)).zip(0..).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, node)| node).collect()
}

fn rank(resource: &str, node: &dyn LockNode) -> u64 {
    match node.identity() {
        Some(identity) => hash(resource, &identity),
        None => hash(resource, node.name()),
    }
}

/// FNV-1a (Fowler, Noll, Vo), finished as SplitMix64 does: the same in every process, version and language.
fn hash(resource: &str, node: &str) -> u64 {
    let bytes = resource.bytes().chain([0xFF]).chain(node.bytes());
    let hash = bytes
        .fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3));
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_of(resource: &str, nodes: &[&str]) -> String {
        let rank = |node: &&&str| hash(resource, node);
        (*nodes.iter().min_by_key(rank).unwrap()).to_string()
    }

    #[test]
    fn the_order_in_which_nodes_are_configured_does_not_matter() {
        for n in 0..100 {
            let resource = n.to_string();
            assert_eq!(first_of(&resource, &["a", "b", "c"]), first_of(&resource, &["c", "a", "b"]));
        }
    }

    #[test]
    fn resources_are_spread_over_nodes() {
        let nodes = ["10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"];
        for node in nodes {
            let kept = (0..300).filter(|n| first_of(&format!("orders/{n}"), &nodes) == node).count();
            assert!((60..=140).contains(&kept), "{node} keeps {kept} of 300");
        }
    }
}
