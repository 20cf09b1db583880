//! Which beginnings do prompts have in common? A tree whose ways from the root are the texts that were asked and answered.

use rustc_hash::FxHashMap;

use crate::simulate::prompt::Segment;

/// Where all texts begin.
pub(in crate::plan) const ROOT: u32 = 0;

/// A place in the tree: all text from the root up to its depth.
#[derive(Clone, Copy, Default)]
pub(in crate::plan) struct Node {
    pub(in crate::plan) parent: u32,
    /// Tokens from the root to its end; more than its parent's.
    pub(in crate::plan) depth: u64,
    /// Requests whose prompts or answers pass through.
    pub(in crate::plan) requests: u64,
}

/// What text goes on below a place: that of a segment, from its token `from` on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Edge {
    parent: u32,
    id: u64,
    from: u32,
}

/// The texts so far.
pub(in crate::plan) struct Tree {
    nodes: Vec<Node>,
    children: FxHashMap<Edge, u32>,
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
            children: FxHashMap::default(),
        }
    }
}

impl Tree {
    /// Goes from a place along some text, which need not have been there, and counts a request on the way. Returns where
    /// it ends, and how many of its tokens were there before.
    pub(in crate::plan) fn add(&mut self, from: u32, text: &[Segment]) -> (u32, u64) {
        let (mut at, mut known, mut held) = (from, true, 0);
        for segment in text {
            let (end, found) = self.step(at, *segment);
            held += if known { u64::from(found) } else { 0 };
            known &= found == segment.tokens;
            at = end;
        }
        (at, held)
    }

    fn step(&mut self, from: u32, segment: Segment) -> (u32, u32) {
        let (mut at, mut done) = (from, 0);
        while done < segment.tokens {
            let edge = Edge {
                parent: at,
                id: segment.id,
                from: done,
            };
            let left = segment.tokens - done;
            let Some(&child) = self.children.get(&edge) else {
                let end = self.depth(at) + u64::from(left);
                let node = self.push(edge, end, 0);
                self.count(node);
                return (node, done);
            };
            let tokens = self.depth(child) - self.depth(at);
            at = match u32::try_from(tokens) {
                Ok(tokens) if tokens <= left => {
                    done += tokens;
                    child
                }
                // The text ends, or goes on otherwise, within the child's.
                _ => {
                    done = segment.tokens;
                    self.split(edge, child, left)
                }
            };
            self.count(at);
        }
        (at, done)
    }

    /// Puts a place between a child and its parent, so many tokens below the latter.
    fn split(&mut self, edge: Edge, child: u32, tokens: u32) -> u32 {
        let requests = self.node(child).requests;
        let middle = self.push(edge, self.depth(edge.parent) + u64::from(tokens), requests);
        if let Some(child) = self.nodes.get_mut(child as usize) {
            child.parent = middle;
        }
        let rest = Edge {
            parent: middle,
            id: edge.id,
            from: edge.from + tokens,
        };
        self.children.insert(rest, child);
        middle
    }

    fn push(&mut self, edge: Edge, depth: u64, requests: u64) -> u32 {
        let node = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.nodes.push(Node {
            parent: edge.parent,
            depth,
            requests,
        });
        self.children.insert(edge, node);
        node
    }

    fn count(&mut self, node: u32) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.requests += 1;
        }
    }

    fn node(&self, at: u32) -> Node {
        self.nodes.get(at as usize).copied().unwrap_or_default()
    }

    fn depth(&self, at: u32) -> u64 {
        self.node(at).depth
    }

    /// The places alone, by their numbers.
    pub(in crate::plan) fn into_nodes(self) -> Vec<Node> {
        self.nodes
    }
}

/// The numbers of all places but the root, parents before their children.
pub(in crate::plan) fn downwards(nodes: &[Node]) -> Vec<u32> {
    let depth = |at: &u32| nodes.get(*at as usize).map_or(0, |node| node.depth);
    let mut order: Vec<u32> = (0_u32..)
        .zip(nodes)
        .skip(1)
        .map(|(number, _)| number)
        .collect();
    order.sort_by_key(depth);
    order
}
