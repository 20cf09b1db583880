//! Which rank does a fault befall? `fault@rank`, or the first rank (and the server) without a word.

use std::fmt;
use std::str::FromStr;

use super::{Fault, UnknownFault};

/// A fault, and the rank that it befalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankFault {
    /// What goes wrong.
    pub fault: Fault,
    /// Where. `None`: at the first rank, or at the server if the fault is of that kind.
    pub rank: Option<u32>,
}

impl From<Fault> for RankFault {
    fn from(fault: Fault) -> Self {
        Self { fault, rank: None }
    }
}

/// Text that names no fault of a rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankFaultError {
    /// Of no kind at all.
    #[error(transparent)]
    Unknown(#[from] UnknownFault),
    /// What stands behind the `@` is no number.
    #[error("{0:?} is not the number of a rank")]
    Rank(String),
    /// The server is one, however many ranks it has.
    #[error("{0} befalls the server and cannot be told a rank")]
    OfServer(Fault),
}

impl FromStr for RankFault {
    type Err = RankFaultError;

    fn from_str(text: &str) -> Result<Self, RankFaultError> {
        let Some((fault, rank)) = text.split_once('@') else {
            return Ok(text.parse::<Fault>()?.into());
        };
        let fault: Fault = fault.parse()?;
        if fault.is_of_server() {
            return Err(RankFaultError::OfServer(fault));
        }
        let number = rank
            .parse()
            .map_err(|_| RankFaultError::Rank(rank.to_owned()))?;
        Ok(Self {
            fault,
            rank: Some(number),
        })
    }
}

impl fmt::Display for RankFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(f)?;
        match self.rank {
            Some(rank) => write!(f, "@{rank}"),
            None => Ok(()),
        }
    }
}
