//! Which of its routes a server has, as far as it was tried.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::Form;
use crate::request::Api;

/// How long a route that was not there is not tried again: a server may be replaced by a later version.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The routes that a server was seen not to have.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    absent: BTreeMap<(Api, Form), Instant>,
}

impl Routes {
    /// The form to ask in, the exact one before the other; `None` where the server has neither.
    #[must_use]
    pub fn form(&self, api: Api, now: Instant) -> Option<Form> {
        let is_absent =
            |form| self.absent.get(&(api, form)).is_some_and(|since| now < *since + FORGOTTEN_AFTER);
        [Form::Render, Form::Tokenize].into_iter().find(|form| !is_absent(*form))
    }

    /// A route was not there.
    pub fn is_absent(&mut self, api: Api, form: Form, now: Instant) {
        self.absent.insert((api, form), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::start;

    #[test]
    fn a_route_that_is_not_there_is_tried_again_after_a_while() {
        let (mut routes, now) = (Routes::default(), start());
        assert_eq!(routes.form(Api::Completions, now), Some(Form::Render));
        routes.is_absent(Api::Completions, Form::Render, now);
        assert_eq!(routes.form(Api::Completions, now), Some(Form::Tokenize));
        assert_eq!(
            routes.form(Api::ChatCompletions, now),
            Some(Form::Render),
            "it is said of that API alone"
        );
        routes.is_absent(Api::Completions, Form::Tokenize, now + FORGOTTEN_AFTER / 2);
        assert_eq!(routes.form(Api::Completions, now + FORGOTTEN_AFTER / 2), None);
        assert_eq!(routes.form(Api::Completions, now + FORGOTTEN_AFTER), Some(Form::Render));
    }
}
