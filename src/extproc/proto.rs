//! The wire's messages, generated from `proto/`.
#![expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    unused_qualifications,
    reason = "generated code"
)]

tonic::include_proto!("protos");
