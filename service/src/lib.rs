//! What any long-running program of this workspace needs, and nothing about blocks or requests.
//!
//! In the order in which a program uses them:
//!
//! - [`config`]: one YAML file into one type, with errors that say where and what.
//! - [`logs`]: structured logs on standard error, with a level that can be changed while running.
//! - [`drain`]: every task is started through it, so that a shutdown can wait for all of them.
//! - [`ready`]: what still has to happen before the program may be used, by name.
//! - [`admin`]: health, readiness, metrics, status, configuration and log level over HTTP.
//! - [`command`]: answers, complaints and exit codes of the program's commands.
//! - [`addresses`]: the ports that were really bound, for whoever started the program with port 0.

pub mod config;
pub mod logs;

pub mod drain;
pub mod ready;

pub mod addresses;
pub mod admin;
pub mod command;
