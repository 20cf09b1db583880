//! What is one endpoint believed to hold, block by block? For the page that shows it; no pick asks this.

use std::time::Instant;

use super::super::block::BlockKey;
use super::{EndpointView, Router};

/// The blocks of one endpoint by what tells of them. Each list is in no order.
#[derive(Clone, Debug)]
pub struct Contents {
    /// The endpoint, as pages show it.
    pub endpoint: EndpointView,
    /// What is cached by each event source, by rank, in the order of the endpoint's feeds.
    pub told: Vec<(u32, Vec<BlockKey>)>,
    /// Of these, the blocks that no event told of: the engine's answers did.
    pub credited: Vec<BlockKey>,
    /// What was sent there and may be cached: pieces of texts, and where there are no events, blocks.
    pub sent: Vec<BlockKey>,
}

impl Router {
    /// The blocks of the endpoint with this full name; `None` if there is none. While events arrive the lists are
    /// not of one moment. Takes about 3 ms for a million blocks, during which picks and events go on.
    pub fn contents(&self, name: &str, now: Instant) -> Option<Contents> {
        // While a Pod is replaced there may be two of one name for a moment: the ready one is picked for.
        let mut named = self.endpoints(now);
        named.retain(|view| view.endpoint.name.as_str() == name);
        let endpoint = named.into_iter().max_by_key(|view| view.ready)?;
        let (told, sent) = self.state.ledger.lock().columns(endpoint.id)?;
        let told = told
            .into_iter()
            .map(|(rank, source)| (rank, self.state.index.keys(source)))
            .collect();
        let credited = self.credited(endpoint.id);
        Some(Contents {
            endpoint,
            told,
            credited,
            sent: self.state.approximate.keys(sent),
        })
    }
}
