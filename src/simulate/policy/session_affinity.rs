//! Session affinity: a conversation stays with the replica that took its first request.
//!
//! The first goes to the fewest in flight; when its replica is not ready, the conversation finds a new home the same
//! way. llm-d's `session-affinity-filter`, AIBrix's `session-affinity`, Dynamo's hard mode, and every cookie. Idealised:
//! every request tells its session, and no session is forgotten (llm-d 0.10 forgets one by id after 300 s).

use rustc_hash::FxHashMap;

use super::choose::{book, least, ready};
use super::{Asked, Knowledge, Policy};
use crate::routing::router::{Decision, Refusal};

#[derive(Default)]
pub(super) struct SessionAffinity {
    /// Where each session lives.
    homes: FxHashMap<u64, usize>,
}

impl Policy for SessionAffinity {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        let ready = ready(fleet.survey_load(asked));
        let session = asked.arrival.session;
        let home = self.homes.get(&session).copied();
        let stays = home.filter(|&home| ready.iter().any(|seen| seen.replica == home));
        let chosen = stays.or_else(|| least(&ready, asked.chance, |seen| seen.in_flight));
        let decision = book(asked, fleet, chosen)?;
        if let Some(chosen) = chosen {
            self.homes.insert(session, chosen);
        }
        Ok(decision)
    }
}
