//! Which dialect of events is spoken? Engines and their releases differ in fields, order, shape and sign.

/// The dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Encoding {
    /// vLLM 0.24 and later: maps.
    #[value(alias = "vllm-0.24")]
    Map,
    /// vLLM 0.22 and 0.23: arrays of eleven fields.
    #[value(alias = "vllm-0.23")]
    Array,
    /// vLLM 0.20: arrays up to the cache group.
    #[value(name = "vllm-0.20")]
    Vllm20,
    /// vLLM 0.10.2 to 0.13: arrays up to the medium.
    #[value(name = "vllm-0.10")]
    Vllm10,
    /// vLLM 0.9.0: arrays of signed hashes without medium, batches without rank.
    #[value(name = "vllm-0.9")]
    Vllm9,
    /// SGLang 0.5.23: maps of signed hashes.
    SglangMap,
    /// SGLang 0.5.10: arrays of signed hashes.
    SglangArray,
    /// TensorRT-LLM: maps of signed hashes.
    Trtllm,
}

/// How hashes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HashForm {
    /// 64-bit numbers.
    Int,
    /// Digests of 32 bytes, as vLLM's with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`; the numbers are their last 8.
    Bytes,
}

/// A field of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    SpecKind,
    SlidingWindow,
    CacheSalt,
}

/// All that vLLM has, in the order in which they were added; a release has the first so many.
const VLLM_STORED: [Field; 11] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::SpecKind,
    Field::SlidingWindow,
];
const VLLM_REMOVED: [Field; 3] = [Field::Hashes, Field::Medium, Field::Group];
const SGLANG_STORED: [Field; 8] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::CacheSalt,
];

impl Encoding {
    /// It is one of vLLM's.
    pub(in crate::engine) const fn is_vllm(self) -> bool {
        match self {
            Self::Map | Self::Array | Self::Vllm20 | Self::Vllm10 | Self::Vllm9 => true,
            Self::SglangMap | Self::SglangArray | Self::Trtllm => false,
        }
    }

    /// Its events tell the cache group.
    pub(in crate::engine) const fn has_groups(self) -> bool {
        matches!(self, Self::Map | Self::Array | Self::Vllm20)
    }

    /// Replayed batches carry the topic.
    pub(in crate::engine) const fn replays_topic(self) -> bool {
        matches!(
            self,
            Self::Map | Self::SglangMap | Self::SglangArray | Self::Trtllm
        )
    }

    /// Events are maps; else arrays with their name in front.
    pub(super) const fn is_map(self) -> bool {
        matches!(self, Self::Map | Self::SglangMap | Self::Trtllm)
    }

    pub(super) const fn is_signed(self) -> bool {
        matches!(
            self,
            Self::Vllm9 | Self::SglangMap | Self::SglangArray | Self::Trtllm
        )
    }

    /// Batches end with the rank.
    pub(super) const fn tells_rank(self) -> bool {
        !matches!(self, Self::Vllm9)
    }

    /// The fields of a store, in order.
    pub(super) fn stored(self) -> &'static [Field] {
        let vllm = |fields| VLLM_STORED.get(..fields).unwrap_or(&VLLM_STORED);
        match self {
            Self::Map | Self::Array => &VLLM_STORED,
            Self::Vllm20 => vllm(9),
            Self::Vllm10 | Self::SglangArray => vllm(6),
            Self::Vllm9 => vllm(5),
            Self::Trtllm => vllm(7),
            Self::SglangMap => &SGLANG_STORED,
        }
    }

    /// The fields of a removal, in order.
    pub(super) fn removed(self) -> &'static [Field] {
        let fields = match self {
            Self::Map | Self::Array | Self::Vllm20 => 3,
            Self::Vllm10 | Self::SglangMap | Self::SglangArray | Self::Trtllm => 2,
            Self::Vllm9 => 1,
        };
        VLLM_REMOVED.get(..fields).unwrap_or(&VLLM_REMOVED)
    }

    /// A map leaves the field out where it is nil.
    pub(super) fn omits_nil(self, field: Field) -> bool {
        match field {
            Field::ExtraKeys
            | Field::Group
            | Field::SpecKind
            | Field::SlidingWindow
            | Field::CacheSalt => true,
            Field::LoraName => self == Self::SglangMap,
            _ => false,
        }
    }

    /// What host memory and what is below it are called: SGLang has names of its own.
    pub(super) const fn lower_media(self) -> [&'static str; 2] {
        match self {
            Self::SglangMap | Self::SglangArray => ["CPU_PINNED", "DISK"],
            _ => ["CPU", "STORAGE"],
        }
    }
}
