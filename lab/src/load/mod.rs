//! A load generator: multi-turn chats over shared system prompts, sent to an OpenAI URL.
//!
//! Reading order: [`workload`] (what is said, from a seed), [`client`] (one streamed request and what came of it),
//! [`run`] (many sessions at once), [`report`] (what it amounted to).

pub mod client;
pub mod command;
pub mod report;
pub mod run;
pub mod workload;
