//! Python where it shows through a template: how values print, `tojson`, methods of strings, dates.

mod args;
pub(super) mod attributes;
pub(super) mod compare;
pub(super) mod dumps;
pub(super) mod filters;
pub(super) mod globals;
pub(super) mod items;
pub(super) mod kept;
mod letters;
pub(super) mod methods;
mod numbers;
pub(super) mod objects;
pub(super) mod operators;
pub(super) mod print;
mod printf;
pub(super) mod sequences;
mod splits;
pub(super) mod texts;
pub(super) mod time;
pub(super) mod tojson;
pub(super) mod value;
