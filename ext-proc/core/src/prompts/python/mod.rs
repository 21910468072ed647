//! Python where it shows through a template: how values print, `tojson`, methods of strings, dates.

mod args;
pub(super) mod dumps;
pub(super) mod filters;
pub(super) mod globals;
pub(super) mod methods;
pub(super) mod print;
pub(super) mod texts;
pub(super) mod time;
pub(super) mod tojson;
pub(super) mod value;
