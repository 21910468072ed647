//! What the two programs must agree on: how a block is named, and what an agent tells a server.
//!
//! Reading order: [`naming`] (domains, chains, keys), [`words`] (the feed's messages as plain values),
//! [`convert`] (words to and from [`pb`], the generated wire types, which go no further than this crate and the
//! two programs' gRPC shells).

pub mod convert;
pub mod naming;
pub mod words;

/// The generated wire types of `feed.proto`.
#[allow(
    missing_docs,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    clippy::large_enum_variant,
    clippy::use_self,
    clippy::or_fun_call,
    reason = "generated code, different with and without `grpc`"
)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/kvpick.feed.v1.rs"));
}
