//! Ordered trees that share one arena and know how much waits before any place in them. Pure.
//!
//! They are treaps (Seidel and Aragon, "Randomized search trees", 1996): ordered by key, heaped by a number that is
//! hashed from the key, so that their depth is O(log n) whatever the order of arrival, and the same in every run. Each
//! node also knows the load of the tree below it, which the standard library's maps cannot tell: it is what admission
//! asks for.

use std::num::NonZeroU32;

use super::cost::Load;
use crate::deadline::Deadline;
use crate::splitmix64::splitmix64;

/// The order inside a class: deadline, then arrival.
pub(crate) type Key = (Deadline, u64);

/// A node's place in the arena, from 1, so that "none" costs nothing.
pub(crate) type Id = NonZeroU32;

/// The root of one tree.
pub(crate) type Link = Option<Id>;

#[derive(Debug)]
struct TreeNode<T> {
    key: Key,
    heap: u32,
    left: Link,
    right: Link,
    cost: u64,
    /// Of this node and all below it.
    entries: u32,
    sum: u64,
    value: T,
}

/// The nodes of several trees.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    nodes: slab::Slab<TreeNode<T>>,
}

impl<T> Arena<T> {
    pub(crate) fn new() -> Self {
        Self { nodes: slab::Slab::new() }
    }

    /// Makes a node that is in no tree yet.
    pub(crate) fn make(&mut self, key: Key, cost: u64, value: T) -> Id {
        let heap = (splitmix64(key.1) >> 32) as u32;
        let node = TreeNode { key, heap, left: None, right: None, cost, entries: 1, sum: cost, value };
        let index = self.nodes.insert(node);
        u32::try_from(index + 1).ok().and_then(Id::new).expect("entries hold places in a bounded queue, far below 2³²")
    }

    /// Gives up a node that is in no tree any more.
    pub(crate) fn unmake(&mut self, id: Id) -> T {
        self.nodes.remove(index(id)).value
    }

    pub(crate) fn value(&self, id: Id) -> &T {
        &self.node(id).value
    }

    pub(crate) fn value_mut(&mut self, id: Id) -> &mut T {
        &mut self.node_mut(id).value
    }

    pub(crate) fn key(&self, id: Id) -> Key {
        self.node(id).key
    }

    pub(crate) fn cost(&self, id: Id) -> u64 {
        self.node(id).cost
    }

    /// Everything in the tree.
    pub(crate) fn load(&self, root: Link) -> Load {
        root.map(|id| self.node(id)).map_or(Load::NONE, |node| Load::new(node.entries as usize, node.sum))
    }

    /// The first in order.
    pub(crate) fn first(&self, root: Link) -> Link {
        let mut at = root?;
        while let Some(left) = self.node(at).left {
            at = left;
        }
        Some(at)
    }

    pub(crate) fn find(&self, root: Link, key: Key) -> Link {
        let mut at = root;
        while let Some(id) = at {
            let node = self.node(id);
            at = match key.cmp(&node.key) {
                std::cmp::Ordering::Less => node.left,
                std::cmp::Ordering::Equal => return Some(id),
                std::cmp::Ordering::Greater => node.right,
            };
        }
        None
    }

    /// What stands before `key`, whether it is in the tree or not.
    pub(crate) fn before(&self, root: Link, key: Key) -> Load {
        let (mut at, mut load) = (root, Load::default());
        while let Some(id) = at {
            let node = self.node(id);
            if node.key < key {
                load = load.plus(self.load(node.left)).plus(Load::new(1, node.cost));
                at = node.right;
            } else {
                at = node.left;
            }
        }
        load
    }

    /// Puts a node that is in no tree into this one.
    pub(crate) fn insert(&mut self, root: Link, id: Id) -> Link {
        let (key, heap, cost) = {
            let node = self.node(id);
            (node.key, node.heap, node.cost)
        };
        let (mut at, mut parent) = (root, None);
        while let Some(above) = at.filter(|at| self.node(*at).heap >= heap) {
            let node = self.node_mut(above);
            node.entries += 1;
            node.sum += cost;
            let is_right = node.key < key;
            at = if is_right { node.right } else { node.left };
            parent = Some((above, is_right));
        }
        let (left, right) = self.split(at, key);
        let node = self.node_mut(id);
        (node.left, node.right) = (left, right);
        self.refresh(id);
        self.put_below(root, parent, Some(id))
    }

    /// Takes a node that is in this tree out of it.
    pub(crate) fn remove(&mut self, root: Link, id: Id) -> Link {
        let (key, cost, left, right) = {
            let node = self.node(id);
            (node.key, node.cost, node.left, node.right)
        };
        let (mut at, mut parent) = (root, None);
        while let Some(above) = at.filter(|at| *at != id) {
            let node = self.node_mut(above);
            node.entries -= 1;
            node.sum -= cost;
            let is_right = node.key < key;
            at = if is_right { node.right } else { node.left };
            parent = Some((above, is_right));
        }
        debug_assert_eq!(at, Some(id), "the node is in this tree");
        let merged = self.merge(left, right);
        let node = self.node_mut(id);
        (node.left, node.right) = (None, None);
        self.put_below(root, parent, merged)
    }

    fn put_below(&mut self, root: Link, parent: Option<(Id, bool)>, child: Link) -> Link {
        let Some((parent, is_right)) = parent else { return child };
        let node = self.node_mut(parent);
        *(if is_right { &mut node.right } else { &mut node.left }) = child;
        root
    }

    /// Cuts a tree into what stands before `key` and what stands after it.
    fn split(&mut self, at: Link, key: Key) -> (Link, Link) {
        let Some(id) = at else { return (None, None) };
        let (node_key, left, right) = {
            let node = self.node(id);
            (node.key, node.left, node.right)
        };
        if node_key < key {
            let (before, after) = self.split(right, key);
            self.node_mut(id).right = before;
            self.refresh(id);
            (Some(id), after)
        } else {
            let (before, after) = self.split(left, key);
            self.node_mut(id).left = after;
            self.refresh(id);
            (before, Some(id))
        }
    }

    /// Joins two trees of which the first stands before the second.
    fn merge(&mut self, first: Link, second: Link) -> Link {
        let (Some(a), Some(b)) = (first, second) else { return first.or(second) };
        if self.node(a).heap >= self.node(b).heap {
            let below = self.merge(self.node(a).right, second);
            self.node_mut(a).right = below;
            self.refresh(a);
            first
        } else {
            let below = self.merge(first, self.node(b).left);
            self.node_mut(b).left = below;
            self.refresh(b);
            second
        }
    }

    fn refresh(&mut self, id: Id) {
        let node = self.node(id);
        let below = self.load(node.left).plus(self.load(node.right)).plus(Load::new(1, node.cost));
        let node = self.node_mut(id);
        (node.entries, node.sum) = (below.entries as u32, below.cost);
    }

    fn node(&self, id: Id) -> &TreeNode<T> {
        &self.nodes[index(id)]
    }

    fn node_mut(&mut self, id: Id) -> &mut TreeNode<T> {
        &mut self.nodes[index(id)]
    }
}

fn index(id: Id) -> usize {
    id.get() as usize - 1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Instant;
    use proptest::prelude::*;

    /// The keys below `at`, in order. Fails if a node has a larger heap number than the node above it.
    fn keys(arena: &Arena<()>, at: Link, above: u32) -> Result<Vec<Key>, TestCaseError> {
        let Some(id) = at else { return Ok(Vec::new()) };
        let node = arena.node(id);
        prop_assert!(node.heap <= above, "the tree may become a list");
        let (mut all, right) = (keys(arena, node.left, node.heap)?, keys(arena, node.right, node.heap)?);
        all.push(node.key);
        all.extend(right);
        Ok(all)
    }

    proptest! {
        /// After any insertions and removals the tree is ordered by key and heaped by the hashed numbers.
        #[test]
        fn stays_ordered_and_heaped(steps in prop::collection::vec((0u64..50, prop::option::of(0usize..100)), 0..100)) {
            let (start, mut arena, mut root) = (Instant::now(), Arena::new(), None);
            let mut ids: Vec<Id> = Vec::new();
            for (sequence, (due, removed)) in steps.into_iter().enumerate() {
                let id = arena.make((Deadline::after(start, Duration::from_millis(due)), sequence as u64), 1, ());
                root = arena.insert(root, id);
                ids.push(id);
                if let Some(nth) = removed.filter(|nth| *nth < ids.len()) {
                    let id = ids.swap_remove(nth);
                    root = arena.remove(root, id);
                    arena.unmake(id);
                }
                let mut expected: Vec<Key> = ids.iter().map(|id| arena.key(*id)).collect();
                expected.sort_unstable();
                prop_assert_eq!(keys(&arena, root, u32::MAX)?, expected);
            }
        }
    }
}
