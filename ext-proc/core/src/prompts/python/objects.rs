//! Python's kinds of values that the engine has none of its own for.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use minijinja::{
    Error, ErrorKind, State,
    value::{Enumerator, Object, ObjectRepr, Value, ValueKind, from_args},
};

/// `range(…)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) start: i64,
    pub(crate) stop: i64,
    pub(crate) step: i64,
}

impl Range {
    pub(crate) fn len(self) -> usize {
        let (from, to) = if self.step > 0 { (self.start, self.stop) } else { (self.stop, self.start) };
        let span = i128::from(to) - i128::from(from);
        let step = i128::from(self.step.unsigned_abs());
        usize::try_from(((span + step - 1) / step).max(0)).unwrap_or(usize::MAX)
    }

    pub(crate) fn at(self, index: usize) -> i64 {
        self.start.saturating_add(self.step.saturating_mul(i64::try_from(index).unwrap_or(i64::MAX)))
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize().filter(|index| *index < self.len())?;
        Some(Value::from(self.at(index)))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len())
    }
}

/// Longest range, which is Jinja's own limit.
const LONGEST_RANGE: usize = 100_000;

/// The function `range`.
pub(crate) fn range(first: i64, second: Option<i64>, third: Option<i64>) -> Result<Value, Error> {
    let range = match (second, third) {
        (None, _) => Range { start: 0, stop: first, step: 1 },
        (Some(stop), step) => Range { start: first, stop, step: step.unwrap_or(1) },
    };
    if range.step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "range() arg 3 must not be zero"));
    }
    if range.len() > LONGEST_RANGE {
        return Err(Error::new(ErrorKind::InvalidOperation, "range too big"));
    }
    Ok(Value::from_object(range))
}

/// `dict.keys()`, `dict.values()` or `dict.items()`.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) name: &'static str,
    pub(crate) items: Vec<Value>,
}

impl View {
    /// The view that the method of that name gives.
    pub(crate) fn of(dict: &Value, method: &str) -> Result<Value, Error> {
        let items = |of: fn(Value, Value) -> Value| -> Result<Vec<Value>, Error> {
            dict.try_iter()?.map(|key| Ok(of(key.clone(), dict.get_item(&key)?))).collect()
        };
        Ok(Value::from_object(match method {
            "keys" => Self { name: "dict_keys", items: items(|key, _| key)? },
            "values" => Self { name: "dict_values", items: items(|_, value| value)? },
            _ => Self { name: "dict_items", items: items(|key, value| Value::from((key, value)))? },
        }))
    }
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }
}

/// What can be looped over once, is true even where nothing is in it, and has no length.
#[derive(Debug)]
pub(crate) struct Generator(Mutex<Vec<Value>>);

impl Generator {
    pub(crate) fn of(items: Vec<Value>) -> Value {
        Value::from_object(Self(Mutex::new(items)))
    }

    /// What it would give, without taking it.
    pub(crate) fn left(&self) -> Vec<Value> {
        self.0.lock().map(|items| items.clone()).unwrap_or_default()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.lock().map(|mut items| std::mem::take(&mut *items)).unwrap_or_default())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }
}

/// One group of `groupby`: a pair whose halves have names.
#[derive(Debug)]
pub(crate) struct Group(pub(crate) Value, pub(crate) Value);

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_str(), key.as_i64()) {
            (Some("grouper"), _) | (_, Some(0)) => Some(self.0.clone()),
            (Some("list"), _) | (_, Some(1)) => Some(self.1.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}

/// A method that was looked up and not called.
#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) of: Value,
    pub(crate) name: String,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.of.call_method(state, &self.name, args)
    }
}

/// An integer beyond 128 bits. It can be printed; templates do no sums with such.
#[derive(Debug)]
pub(crate) struct BigInt(pub(crate) Box<str>);

impl Object for BigInt {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `joiner(separator)`: nothing at the first call, then the separator.
#[derive(Debug)]
struct Joiner {
    separator: Value,
    was_called: Mutex<bool>,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        from_args::<()>(args)?;
        let was_called = self.was_called.lock().is_ok_and(|mut it| std::mem::replace(&mut *it, true));
        Ok(if was_called { self.separator.clone() } else { Value::from("") })
    }
}

/// The function `joiner`.
pub(crate) fn joiner(separator: Option<Value>) -> Value {
    let separator = separator.unwrap_or_else(|| Value::from(", "));
    Value::from_object(Joiner { separator, was_called: Mutex::new(false) })
}

/// What a value is to Python, where the engine has one kind for several.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Type {
    Undefined,
    None,
    Number,
    Text,
    List,
    Tuple,
    Range,
    Dict,
    /// A view of a dictionary.
    View,
    Macro,
    Loop,
    Namespace,
    /// An integer that is beyond 128 bits.
    BigInt,
    /// A function, a method, what can be looped over once, and all else.
    Other,
}

pub(crate) fn type_of(value: &Value) -> Type {
    match value.kind() {
        ValueKind::Undefined => Type::Undefined,
        ValueKind::None => Type::None,
        ValueKind::Bool | ValueKind::Number => Type::Number,
        ValueKind::String => Type::Text,
        ValueKind::Seq if value.is_tuple() || value.downcast_object_ref::<Group>().is_some() => Type::Tuple,
        ValueKind::Seq if value.downcast_object_ref::<Range>().is_some() => Type::Range,
        ValueKind::Seq => Type::List,
        ValueKind::Iterable if value.downcast_object_ref::<View>().is_some() => Type::View,
        // Lists that the engine makes only when they are read.
        ValueKind::Iterable if value.len().is_some() => Type::List,
        ValueKind::Map if value.is_kwargs() => Type::Other,
        ValueKind::Map => match value.as_object().map_or("", |object| object.type_name()) {
            name if name.contains("Map<") => Type::Dict,
            name if name.ends_with("::Macro") => Type::Macro,
            name if name.ends_with("::Loop") => Type::Loop,
            name if name.ends_with("::Namespace") => Type::Namespace,
            _ => Type::Other,
        },
        _ if value.downcast_object_ref::<BigInt>().is_some() => Type::BigInt,
        _ => Type::Other,
    }
}
