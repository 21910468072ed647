//! The outside world for trying and measuring: an engine simulator that speaks vLLM's protocols, and a load generator.

pub mod demo;
pub mod engine;
pub mod kube;
pub mod load;
pub mod rig;
pub mod seeded;
pub mod words;
