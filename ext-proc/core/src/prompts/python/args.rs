//! Arguments as Python takes them: by place or by name.

use minijinja::{
    Error, ErrorKind,
    value::{Kwargs, Rest, Value, ValueKind},
};

/// What a filter or method was called with.
#[derive(Debug)]
pub(crate) struct Args {
    places: Vec<Value>,
    names: Kwargs,
}

impl Args {
    /// Those of a filter.
    pub(crate) fn new(places: Rest<Value>, names: Kwargs) -> Self {
        Self { places: places.0, names }
    }

    /// Those of a method, where names come last in one value.
    pub(crate) fn of_method(args: &[Value]) -> Result<Self, Error> {
        Ok(match args.split_last() {
            Some((names, places)) if names.is_kwargs() => {
                Self { places: places.to_vec(), names: Kwargs::try_from(names.clone())? }
            }
            _ => Self { places: args.to_vec(), names: Kwargs::from_iter::<[(&str, Value); 0]>([]) },
        })
    }

    /// The arguments in the order of `names`; those not given are undefined.
    pub(crate) fn bind<const N: usize>(mut self, names: [&str; N]) -> Result<[Value; N], Error> {
        if N < self.places.len() {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        let mut places = std::mem::take(&mut self.places).into_iter();
        let mut bound = [const { Value::UNDEFINED }; N];
        for (value, name) in bound.iter_mut().zip(names) {
            *value = match places.next() {
                Some(given) => given,
                None => self.names.get::<Option<Value>>(name)?.unwrap_or_default(),
            };
        }
        self.names.assert_all_used()?;
        Ok(bound)
    }

    /// All by name, for a filter of the engine that takes them so only.
    pub(crate) fn named<const N: usize>(self, names: [&str; N]) -> Result<Kwargs, Error> {
        let given = names.into_iter().zip(self.bind(names)?).filter(|(_, value)| is_given(value));
        // It finds items by their number too, but wants the number as text.
        let as_text = |name: &str, value: Value| match value.kind() {
            ValueKind::Number if name == "attribute" => Value::from(value.to_string()),
            _ => value,
        };
        Ok(given.map(|(name, value)| (name, as_text(name, value))).collect())
    }
}

/// Whether an argument is there and not `none`.
pub(crate) fn is_given(value: &Value) -> bool {
    !matches!(value.kind(), ValueKind::Undefined | ValueKind::None)
}

/// A number that may be left out.
pub(crate) fn int_or(value: &Value, default: i64) -> Result<i64, Error> {
    if is_given(value) { i64::try_from(value.clone()) } else { Ok(default) }
}
