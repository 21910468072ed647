//! What a template may keep and look through: bounds on values within values.
//!
//! A namespace outlives a round of a loop, so that a template could put a list into a list as often as it likes. What is
//! nested tens of thousands deep overflows the stack when it is freed, and of two references to one list at each level
//! come more values than can be looked through.

use minijinja::{Error, ErrorKind, State, value::Value};

use super::objects::{Generator, Type, type_of};

/// Lists in one another beyond which a template is hostile.
const DEEPEST: u32 = 64;

/// Values within a value beyond which a template is hostile.
const MOST: u64 = 1 << 17;

/// The value itself, if it may be kept.
pub(crate) fn kept(state: &mut State<'_, '_>, value: Value) -> Result<Value, Error> {
    look_through(state, &value)?;
    Ok(value)
}

/// A dictionary's key: no list or tuple, whose hash looks through all that is in it.
pub(crate) fn key(value: Value) -> Result<Value, Error> {
    match type_of(&value) {
        Type::List | Type::Tuple | Type::Dict => Err(Error::new(
            ErrorKind::InvalidOperation,
            "a list or tuple as a dictionary's key is not supported",
        )),
        _ => Ok(value),
    }
}

/// Pays for looking through all that is in `value`.
pub(crate) fn look_through(state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let mut left = MOST;
    visit(value, &mut left, DEEPEST)?;
    state.consume_fuel((MOST - left) / 16)
}

/// Pays for comparing what is in `value`, or sorting by it.
pub(crate) fn compared(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    if !matches!(type_of(value), Type::List | Type::Tuple | Type::Dict) {
        return Ok(());
    }
    // What is not to be looked through stops itself, and has paid for as much as it took.
    let mut left = MOST;
    drop(visit(value, &mut left, DEEPEST));
    state.consume_fuel((MOST - left) / 4)
}

fn visit(value: &Value, left: &mut u64, deepest: u32) -> Result<(), Error> {
    let too_much = || Error::new(ErrorKind::InvalidOperation, "a value too long or too deep to be kept");
    *left = left.checked_sub(1).ok_or_else(too_much)?;
    let inner = || deepest.checked_sub(1).ok_or_else(too_much);
    if let Some(generator) = value.downcast_object_ref::<Generator>() {
        for item in generator.left() {
            visit(&item, left, inner()?)?;
        }
        return Ok(());
    }
    match type_of(value) {
        Type::Undefined | Type::None | Type::Number | Type::Text | Type::Range | Type::BigInt => {}
        Type::Dict => {
            for key in value.try_iter()? {
                visit(&value.get_item(&key)?, left, inner()?)?;
            }
        }
        Type::List | Type::Tuple | Type::View => {
            for item in value.try_iter()? {
                visit(&item, left, inner()?)?;
            }
        }
        // They hold values that are not to be seen from outside.
        Type::Macro | Type::Loop | Type::Namespace | Type::Other => {
            return Err(Error::new(ErrorKind::InvalidOperation, "an object that can't be kept in another"));
        }
    }
    Ok(())
}
