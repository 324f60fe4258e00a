//! Deliveries in a `SubscribeResponse`, which the load client reads without decoding their messages.
//!
//! Pure.

use prost::encoding::decode_varint;

/// Part of a delivery.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// `WatchResponse` for each of the watches.
    Response(&'a [u8]),
    /// End of each of the watches.
    Ended,
}

/// Error for bytes that are no `SubscribeResponse` as our server encodes it: with the ids of a delivery first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a message that is no SubscribeResponse")]
pub(super) struct Malformed;

const DELIVERIES: u64 = 1 << 3 | 2;
const WATCH_IDS: u64 = 1 << 3 | 2;
const RESPONSES: u64 = 2 << 3 | 2;
const ENDED: u64 = 3 << 3;

/// Calls `each` with the parts of all deliveries, each with the ids of its watches.
pub(super) fn for_each(mut message: &[u8], mut each: impl FnMut(&[u32], Part<'_>)) -> Result<(), Malformed> {
    let mut ids = Vec::new();
    while !message.is_empty() {
        if varint(&mut message)? != DELIVERIES {
            return Err(Malformed);
        }
        let mut delivery = content(&mut message)?;
        ids.clear();
        while !delivery.is_empty() {
            match varint(&mut delivery)? {
                WATCH_IDS => {
                    let mut packed = content(&mut delivery)?;
                    while !packed.is_empty() {
                        ids.push(varint(&mut packed)? as u32);
                    }
                }
                RESPONSES => each(&ids, Part::Response(content(&mut delivery)?)),
                ENDED => {
                    varint(&mut delivery)?;
                    each(&ids, Part::Ended);
                }
                _ => return Err(Malformed),
            }
        }
    }
    Ok(())
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    decode_varint(bytes).map_err(|_| Malformed)
}

fn content<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = varint(bytes)? as usize;
    let (content, rest) = bytes.split_at_checked(length).ok_or(Malformed)?;
    *bytes = rest;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use informerd::proto::pb;
    use prost::Message;

    use super::*;

    #[test]
    fn every_part_is_found_with_its_ids() {
        let event = |version: &str| pb::WatchResponse {
            r#type: pb::EventType::Added.into(),
            resource_version: version.to_owned(),
            ..Default::default()
        };
        let delivery = |ids: &[u32], responses: &[pb::WatchResponse], ended| pb::Delivery {
            watch_ids: ids.to_vec(),
            responses: responses.to_vec(),
            ended,
        };
        let deliveries = vec![
            delivery(&[1, 300], &[event("1"), event("2")], false),
            delivery(&[2], &[], true),
            delivery(&[5], &[event("3")], true),
        ];
        let bytes = pb::SubscribeResponse { deliveries }.encode_to_vec();
        let mut found = Vec::new();
        let part = |ids: &[u32], part: Part<'_>| {
            let version = match part {
                Part::Response(message) => Some(pb::WatchResponse::decode(message).unwrap().resource_version),
                Part::Ended => None,
            };
            found.push((ids.to_vec(), version));
        };
        for_each(&bytes, part).unwrap();
        let version = |version: &str| Some(version.to_owned());
        assert_eq!(
            found,
            [
                (vec![1, 300], version("1")),
                (vec![1, 300], version("2")),
                (vec![2], None),
                (vec![5], version("3")),
                (vec![5], None)
            ]
        );
        for cut in 1..bytes.len() {
            // Without a panic; some prefixes are whole deliveries.
            drop(for_each(&bytes[..cut], |_, _| {}));
        }
        assert_eq!(for_each(&[0x0a, 5, 1], |_, _| {}), Err(Malformed));
    }
}
