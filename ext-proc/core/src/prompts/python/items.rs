//! Items, slices and attributes of values, and what loops go over.

use minijinja::{
    Error, ErrorKind, State,
    value::{Tuple, Value, ValueKind},
};

use super::{
    attributes,
    objects::{Range, Type, type_of},
    operators::{Number, pay_list},
    print,
    texts::like,
};

/// What a loop goes over, with a length that the engine knows.
///
/// `unpacks` says that the loop has a condition and takes its items apart: Jinja then makes tuples of them.
pub(crate) fn looped(state: &mut State<'_, '_>, value: Value, unpacks: Option<bool>) -> Result<Value, Error> {
    if unpacks == Some(true) && type_of(&value) != Type::Undefined {
        pay_list(state, value.len().unwrap_or_default())?;
        let tuple = |item: Value| match type_of(&item) {
            Type::List => Ok(Value::from(Tuple::from(item.try_iter()?.collect::<Vec<_>>()))),
            _ => Ok(item),
        };
        return value.try_iter()?.map(tuple).collect();
    }
    match type_of(&value) {
        Type::None => Err(Error::new(ErrorKind::InvalidOperation, "none cannot be looped over")),
        Type::Text | Type::View | Type::Other => {
            let most = value.as_str().map_or_else(|| value.len(), |text| Some(text.chars().count()));
            pay_list(state, most.unwrap_or_default())?;
            let items: Vec<Value> = value.try_iter()?.collect();
            Ok(Value::from(items))
        }
        _ => Ok(value),
    }
}

/// What a macro is given for a parameter that has a default. The engine would take the default for what is undefined.
pub(crate) fn given(value: Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "an undefined value for a parameter with a default",
        ));
    }
    Ok(value)
}

/// `value.name`, for names that are methods of some type.
pub(crate) fn attr(value: &Value, name: &str) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    match attributes::attribute(value, name) {
        Some(attribute) => Ok(attribute),
        None => value.get_attr(name),
    }
}

/// `value[key]`.
pub(crate) fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    match type_of(value) {
        Type::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        Type::View | Type::Other | Type::BigInt | Type::None | Type::Number => {}
        Type::Text | Type::List | Type::Tuple | Type::Range if print::float(key).is_some() => {}
        Type::Text | Type::List | Type::Tuple | Type::Range if key.kind() == ValueKind::Bool => {
            return value.get_item(&Value::from(i64::from(key.is_true())));
        }
        _ => {
            let item = value.get_item(key)?;
            if let (Some(text), true) = (item.as_str(), value.kind() == ValueKind::String) {
                return Ok(like(value, text.to_owned()));
            }
            if !item.is_undefined() {
                return Ok(item);
            }
        }
    }
    Ok(key.as_str().and_then(|name| attributes::attribute(value, name)).unwrap_or_default())
}

/// `value[start:stop:step]`.
pub(crate) fn slice(
    state: &mut State<'_, '_>,
    value: &Value,
    start: &Value,
    stop: &Value,
    step: &Value,
) -> Result<Value, Error> {
    let bound = |value: &Value| match (value.kind(), Number::of(value)) {
        (ValueKind::None, _) => Ok(None),
        (_, Some(Number::Int(int))) => {
            Ok(Some(i64::try_from(int).unwrap_or(if int < 0 { i64::MIN } else { i64::MAX })))
        }
        _ => Err(Error::new(ErrorKind::InvalidOperation, "slice indices must be integers or none")),
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "slice step cannot be zero"));
    }
    let places = |len: usize| Places::new(len, start, stop, step);
    Ok(match type_of(value) {
        Type::Text => {
            let text = value.as_str().unwrap_or_default();
            let sliced = match (step, text.is_ascii()) {
                (1, true) => {
                    let places = places(text.len());
                    let from = usize::try_from(places.0.start).unwrap_or_default();
                    text.get(from..from + places.0.len()).unwrap_or_default().to_owned()
                }
                _ => {
                    let chars: Vec<char> = text.chars().collect();
                    places(chars.len()).all().filter_map(|at| chars.get(at)).collect()
                }
            };
            like(value, sliced)
        }
        Type::List | Type::Tuple => {
            let items: Vec<Value> = value.try_iter()?.collect();
            pay_list(state, items.len())?;
            let sliced: Vec<Value> =
                places(items.len()).all().filter_map(|at| items.get(at).cloned()).collect();
            if type_of(value) == Type::Tuple { Value::from(Tuple::from(sliced)) } else { Value::from(sliced) }
        }
        Type::Range => {
            let range = value.downcast_object_ref::<Range>().copied();
            let range = range.ok_or_else(|| Error::from(ErrorKind::InvalidOperation))?;
            let places = places(range.len()).0;
            let at = |place: i64| range.start + range.step * place;
            Value::from_object(Range {
                start: at(places.start),
                stop: at(places.stop),
                step: range.step * places.step,
            })
        }
        _ => return Err(Error::new(ErrorKind::InvalidOperation, "cannot be sliced")),
    })
}

/// The places that a slice takes of something of a certain length.
struct Places(Range);

impl Places {
    fn new(len: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Self {
        let len = i64::try_from(len).unwrap_or(i64::MAX);
        let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let clamp = |at: i64| (if at < 0 { at.saturating_add(len) } else { at }).clamp(lowest, highest);
        let (first, last) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
        let (start, stop) = (start.map_or(first, clamp), stop.map_or(last, clamp));
        Self(Range { start, stop, step })
    }

    fn all(self) -> impl Iterator<Item = usize> {
        (0..self.0.len()).filter_map(move |index| usize::try_from(self.0.at(index)).ok())
    }
}
