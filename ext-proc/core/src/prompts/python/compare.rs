//! Comparisons that Python does not have of all values.

use std::cmp::Ordering;

use minijinja::{Error, ErrorKind, State, value::Value};

use super::{
    kept,
    objects::{Type, type_of},
    print,
};

/// Lists in one another beyond which a template cannot mean to compare them.
const DEEPEST: usize = 64;

/// Values in lists and dictionaries beyond which a template cannot mean to compare them.
const MOST: u32 = 1 << 20;

/// Whether `left == right`.
pub(crate) fn equals(left: &Value, right: &Value) -> Result<bool, Error> {
    equal(left, right, &mut { MOST }, DEEPEST)
}

/// `budget` is the number of values that may yet be looked at.
fn equal(left: &Value, right: &Value, budget: &mut u32, depth: usize) -> Result<bool, Error> {
    let types = (type_of(left), type_of(right));
    // To the engine these are lists.
    let is_special = |it: Type| matches!(it, Type::Range | Type::View | Type::Other);
    if types.0 != types.1 && (is_special(types.0) || is_special(types.1)) {
        return Ok(false);
    }
    if types.0 != types.1 || !matches!(types.0, Type::List | Type::Tuple | Type::Dict) {
        return Ok(left == right);
    }
    let len = left.len();
    if len != right.len() {
        return Ok(false);
    }
    let items = u32::try_from(len.unwrap_or_default()).unwrap_or(u32::MAX);
    let too_much = || Error::new(ErrorKind::InvalidOperation, "values too long or too deep to be compared");
    *budget = budget.checked_sub(items).ok_or_else(too_much)?;
    let depth = depth.checked_sub(1).ok_or_else(too_much)?;
    if types.0 == Type::Dict {
        for key in left.try_iter()? {
            let (left, right) = (left.get_item(&key)?, right.get_item(&key)?);
            if right.is_undefined() || !equal(&left, &right, budget, depth)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    for (left, right) in left.try_iter()?.zip(right.try_iter()?) {
        if !equal(&left, &right, budget, depth)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether `left sign right` holds.
pub(crate) fn holds(sign: &str, left: &Value, right: &Value) -> Result<bool, Error> {
    let order = order(left, right, DEEPEST)?;
    Ok(match sign {
        "<" => order == Some(Ordering::Less),
        "<=" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        ">" => order == Some(Ordering::Greater),
        _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    })
}

/// `None` where one is no number at all.
fn order(left: &Value, right: &Value, depth: usize) -> Result<Option<Ordering>, Error> {
    let wrong = || {
        let problem = format!("{} and {} have no order", left.kind(), right.kind());
        Error::new(ErrorKind::InvalidOperation, problem)
    };
    match (type_of(left), type_of(right)) {
        (Type::Number, Type::Number) => {
            let is_nan = [left, right].into_iter().any(|it| print::float(it).is_some_and(f64::is_nan));
            Ok((!is_nan).then(|| left.cmp(right)))
        }
        (Type::Text, Type::Text) => Ok(Some(left.as_str().cmp(&right.as_str()))),
        (Type::List, Type::List) | (Type::Tuple, Type::Tuple) => {
            let depth = depth.checked_sub(1).ok_or_else(wrong)?;
            for (left, right) in left.try_iter()?.zip(right.try_iter()?) {
                if !equals(&left, &right)? {
                    return order(&left, &right, depth);
                }
            }
            Ok(Some(left.len().cmp(&right.len())))
        }
        _ => Err(wrong()),
    }
}

/// `item in container`.
pub(crate) fn contains(state: &State<'_, '_>, container: &Value, item: &Value) -> Result<bool, Error> {
    let wrong = || {
        let problem = format!("{} cannot be in {}", item.kind(), container.kind());
        Error::new(ErrorKind::InvalidOperation, problem)
    };
    match type_of(container) {
        Type::Undefined => Ok(false),
        Type::Text => {
            let (text, part) = (container.as_str().unwrap_or_default(), item.as_str().ok_or_else(wrong)?);
            state.consume_fuel(text.len() as u64 / 64)?;
            Ok(text.contains(part))
        }
        Type::Dict if matches!(type_of(item), Type::List | Type::Dict) => Err(wrong()),
        Type::Dict => Ok(!container.get_item(item)?.is_undefined()),
        Type::None | Type::Number | Type::BigInt | Type::Macro | Type::Loop | Type::Namespace => Err(wrong()),
        _ => {
            state.consume_fuel(container.len().unwrap_or_default() as u64 / 16)?;
            kept::compared(state, container)?;
            for it in container.try_iter()? {
                if equals(&it, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}
