//! A reader of msgpack values from bytes that anybody may have sent.
//!
//! A length is never more than the bytes that are left, and values are skipped without recursion.

use rmp::{Marker, decode};

use super::DecodeError;

pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

/// A byte slice that ended too early is the only way in which reading from one fails.
fn short<E>(_: E) -> DecodeError {
    DecodeError::Truncated
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// A second reader at the same place.
    pub(super) const fn fork(&self) -> Self {
        Self { rest: self.rest }
    }

    pub(super) fn peek(&self) -> Result<Marker, DecodeError> {
        self.rest.first().map(|byte| Marker::from_u8(*byte)).ok_or(DecodeError::Truncated)
    }

    /// Takes a nil, if one is next.
    pub(super) fn nil(&mut self) -> Result<bool, DecodeError> {
        if self.peek()? != Marker::Null {
            return Ok(false);
        }
        decode::read_nil(&mut self.rest).map_err(short)?;
        Ok(true)
    }

    /// Whether so many values can follow, each of which is a byte at least.
    fn holds(&self, values: u64) -> Result<(), DecodeError> {
        if values <= self.rest.len() as u64 { Ok(()) } else { Err(DecodeError::Truncated) }
    }

    /// The length of an array, no more than there are bytes left, and the reader at its first item; `None`, nothing taken, if it is not an array.
    pub(super) fn array(&mut self) -> Result<Option<u32>, DecodeError> {
        match self.peek()? {
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                let len = decode::read_array_len(&mut self.rest).map_err(short)?;
                self.holds(len.into()).map(|()| Some(len))
            }
            _ => Ok(None),
        }
    }

    /// As [`Self::array`], for a map: the number of pairs.
    pub(super) fn map(&mut self) -> Result<Option<u32>, DecodeError> {
        match self.peek()? {
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
                let len = decode::read_map_len(&mut self.rest).map_err(short)?;
                self.holds(2 * u64::from(len)).map(|()| Some(len))
            }
            _ => Ok(None),
        }
    }

    /// An integer of any width and sign; `None`, nothing taken, if it is not one.
    pub(super) fn int(&mut self) -> Result<Option<i128>, DecodeError> {
        match self.peek()? {
            Marker::FixPos(_)
            | Marker::FixNeg(_)
            | Marker::U8
            | Marker::U16
            | Marker::U32
            | Marker::U64
            | Marker::I8
            | Marker::I16
            | Marker::I32
            | Marker::I64 => decode::read_int(&mut self.rest).map(Some).map_err(short),
            _ => Ok(None),
        }
    }

    /// A number of any kind.
    pub(super) fn float(&mut self) -> Result<Option<f64>, DecodeError> {
        match self.peek()? {
            Marker::F64 => decode::read_f64(&mut self.rest).map(Some).map_err(short),
            Marker::F32 => decode::read_f32(&mut self.rest).map(|it| Some(it.into())).map_err(short),
            #[expect(clippy::cast_precision_loss, reason = "a time in whole seconds")]
            _ => Ok(self.int()?.map(|it| it as f64)),
        }
    }

    /// A string, as its bytes: what is not UTF-8 must not fail where it is not used.
    pub(super) fn str(&mut self) -> Result<Option<&'a [u8]>, DecodeError> {
        let len = match self.peek()? {
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                decode::read_str_len(&mut self.rest).map_err(short)?
            }
            _ => return Ok(None),
        };
        self.take(len).map(Some)
    }

    pub(super) fn bin(&mut self) -> Result<Option<&'a [u8]>, DecodeError> {
        let len = match self.peek()? {
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
                decode::read_bin_len(&mut self.rest).map_err(short)?
            }
            _ => return Ok(None),
        };
        self.take(len).map(Some)
    }

    /// Passes over one value of whatever kind and depth.
    pub(super) fn skip(&mut self) -> Result<(), DecodeError> {
        // Values still to be passed over; every one takes a byte at least, so that a claimed length ends by itself.
        let mut pending: u64 = 1;
        while pending > 0 {
            pending -= 1;
            if let Some(len) = self.array()? {
                pending += u64::from(len);
            } else if let Some(len) = self.map()? {
                pending += 2 * u64::from(len);
            } else if self.str()?.is_none()
                && self.bin()?.is_none()
                && self.float()?.is_none()
                && !self.nil()?
            {
                self.skip_rest()?;
            }
        }
        Ok(())
    }

    /// The kinds that no event uses.
    fn skip_rest(&mut self) -> Result<(), DecodeError> {
        match self.peek()? {
            Marker::True | Marker::False => self.take(1).map(drop),
            Marker::FixExt1
            | Marker::FixExt2
            | Marker::FixExt4
            | Marker::FixExt8
            | Marker::FixExt16
            | Marker::Ext8
            | Marker::Ext16
            | Marker::Ext32 => {
                let meta = decode::read_ext_meta(&mut self.rest).map_err(short)?;
                self.take(meta.size).map(drop)
            }
            _ => Err(DecodeError::Reserved),
        }
    }

    fn take(&mut self, len: u32) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(len).map_err(short)?;
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}
