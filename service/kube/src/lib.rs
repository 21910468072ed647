//! The pods of an InferencePool, or of a label selector, as a Kubernetes API server tells of them.
//!
//! [`client`]: who is asked. [`Source`] and [`follow()`]: which pods, and a picture of them that is always whole: it changes from
//! one that was true to the next, and no error makes it smaller. [`pod`] and [`mod@endpoints`] are pure: what of a pod is looked
//! at, and who owns which address.

pub mod client;
pub mod endpoints;
mod follow;
pub mod pod;
mod pool;
mod source;

pub use endpoints::Endpoint;
pub use follow::follow;
pub use pod::Pod;
pub use source::{GROUP, Members, Source, State, WATCH_S, Which};

/// A client of an API server.
pub use kube::Client;
