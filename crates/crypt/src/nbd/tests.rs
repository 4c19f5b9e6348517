//! Properties of the codec: whatever comes, in whatever pieces.

use std::sync::Arc;

use proptest::prelude::*;

use super::handshake::{Handshake, MAX_OPTIONS, Session, Step};
use super::reply::ReplyHeader;
use super::request::{BadMagic, Command, FLAG_DF, FLAG_FUA, FLAG_NO_HOLE, HEADER_LEN, Header};
use super::*;

fn export() -> Arc<Export> {
    Arc::new(Export {
        name: "disk".into(),
        size: 1 << 20,
        flags: flags::HAS_FLAGS
            | flags::SEND_FLUSH
            | flags::SEND_FUA
            | flags::SEND_TRIM
            | flags::SEND_WRITE_ZEROES
            | flags::CAN_MULTI_CONN,
        block: 512,
        preferred: 4096,
        max_request: 1 << 16,
    })
}

fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut v = 0x4948_4156_454f_5054u64.to_be_bytes().to_vec();
    v.extend(kind.to_be_bytes());
    v.extend((data.len() as u32).to_be_bytes());
    v.extend(data);
    v
}

fn go(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut v = (name.len() as u32).to_be_bytes().to_vec();
    v.extend(name.as_bytes());
    v.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|w| v.extend(w.to_be_bytes()));
    v
}

/// Feeds `input` in pieces of the given sizes (the last one repeats), as a reader does.
fn feed(handshake: &mut Handshake, input: &[u8], sizes: &[usize]) -> (Vec<u8>, Step, usize) {
    let (mut out, mut kept, mut at, mut used_up) = (Vec::new(), Vec::new(), 0, 0);
    let mut sizes = sizes
        .iter()
        .copied()
        .chain(std::iter::repeat(*sizes.last().unwrap_or(&1)));
    while at < input.len() {
        let n = sizes.next().unwrap_or(1).clamp(1, input.len() - at);
        kept.extend_from_slice(&input[at..at + n]);
        at += n;
        let (used, step) = handshake.feed(&kept, &mut out);
        assert!(used <= kept.len());
        used_up += used;
        kept.drain(..used);
        // What is kept is at most one option that is looked at, with its header, short of a byte.
        assert!(step != Step::More || kept.len() < 16 + handshake::MAX_OPTION_LEN as usize);
        if step != Step::More {
            return (out, step, used_up);
        }
    }
    (out, Step::More, used_up)
}

/// Option replies in `out`: option, type, data.
fn replies(mut out: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut all = Vec::new();
    let word = |b: &[u8], at: usize| u32::from_be_bytes(b[at..at + 4].try_into().unwrap());
    while !out.is_empty() {
        assert_eq!(out[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
        let len = word(out, 16) as usize;
        all.push((word(out, 8), word(out, 12), out[20..20 + len].to_vec()));
        out = &out[20 + len..];
    }
    all
}

const ERR: u32 = 1 << 31;

#[test]
fn go_tells_size_flags_and_block_sizes() {
    let mut input = 3u32.to_be_bytes().to_vec();
    input.extend(option(8, b""));
    input.extend(option(7, &go("disk", &[1])));
    input.extend(b"requests follow");
    let (out, step, used) = feed(&mut Handshake::new(export()), &input, &[usize::MAX]);
    assert_eq!(step, Step::Enter(Session { structured: true }));
    assert_eq!(&input[used..], b"requests follow");
    let r = replies(&out);
    assert_eq!((r[0].0, r[0].1), (8, 1));
    assert_eq!(
        r[1].2[..10],
        [&[0, 0][..], &(1u64 << 20).to_be_bytes()].concat()
    );
    let flags = u16::from_be_bytes(r[1].2[10..12].try_into().unwrap());
    assert_eq!(flags, export().flags | flags::SEND_DF);
    assert_eq!(
        r[2].2,
        [
            &[0u8, 3][..],
            &512u32.to_be_bytes(),
            &4096u32.to_be_bytes(),
            &65536u32.to_be_bytes()
        ]
        .concat()
    );
    assert_eq!(r[3].2, b"\0\x01disk");
    assert_eq!((r[4].0, r[4].1), (7, 1));
}

#[test]
fn export_name_with_and_without_zeroes() {
    for (client, zeroes) in [(1u32, 124), (3, 0)] {
        let mut input = client.to_be_bytes().to_vec();
        input.extend(option(1, b"disk"));
        let (out, step, _) = feed(&mut Handshake::new(export()), &input, &[usize::MAX]);
        assert_eq!(step, Step::Enter(Session { structured: false }));
        assert_eq!(out.len(), 10 + zeroes);
        assert_eq!(
            out[8..10],
            export().flags.to_be_bytes(),
            "no DF without structured replies"
        );
    }
    let mut input = 3u32.to_be_bytes().to_vec();
    input.extend(option(1, b"other"));
    let (out, step, _) = feed(&mut Handshake::new(export()), &input, &[usize::MAX]);
    assert!(matches!(step, Step::Close(_)) && out.is_empty());
}

#[test]
fn what_is_not_served_is_refused_and_the_rest_goes_on() {
    let mut h = Handshake::new(export());
    let mut input = 3u32.to_be_bytes().to_vec();
    for kind in [4, 5, 9, 10, 11, 77, u32::MAX] {
        input.extend(option(kind, b"some data"));
    }
    input.extend(option(3, b"data"));
    input.extend(option(8, b"data"));
    input.extend(option(7, &go("other", &[])));
    input.extend(option(6, b"short"));
    input.extend(option(7, &[255; 30]));
    input.extend(option(99, &vec![0; 100_000]));
    input.extend(option(3, b""));
    input.extend(option(6, &go("disk", &[])));
    input.extend(option(2, b""));
    let (out, step, _) = feed(&mut h, &input, &[1000]);
    assert!(matches!(step, Step::Close(_)));
    let kinds: Vec<(u32, u32)> = replies(&out).into_iter().map(|r| (r.0, r.1)).collect();
    let mut expected: Vec<(u32, u32)> = [4, 5, 9, 10, 11, 77, u32::MAX]
        .iter()
        .map(|&k| (k, ERR + 1))
        .collect();
    expected.extend([
        (3, ERR + 3),
        (8, ERR + 3),
        (7, ERR + 6),
        (6, ERR + 3),
        (7, ERR + 3),
        (99, ERR + 9),
    ]);
    expected.extend([(3, 2), (3, 1), (6, 3), (6, 3), (6, 1), (2, 1)]);
    assert_eq!(kinds, expected);
}

#[test]
fn a_refused_client_is_told_why() {
    let mut input = 3u32.to_be_bytes().to_vec();
    input.extend(option(8, b""));
    input.extend(option(7, &go("disk", &[])));
    input.extend(option(1, b"disk"));
    let (out, step, _) = feed(&mut Handshake::refusing(export(), "full up"), &input, &[3]);
    assert!(matches!(step, Step::Close(_)));
    let r = replies(&out);
    assert_eq!(r.len(), 2);
    assert!(r.iter().all(|r| r.1 == ERR + 2 && r.2 == b"full up"));
}

#[test]
fn endless_options_end() {
    let mut input = 3u32.to_be_bytes().to_vec();
    for _ in 0..MAX_OPTIONS + 10 {
        input.extend(option(3, b""));
    }
    let (out, step, _) = feed(&mut Handshake::new(export()), &input, &[usize::MAX]);
    assert_eq!(step, Step::Close("too many options"));
    assert_eq!(replies(&out).len() as u32, 2 * MAX_OPTIONS);
}

fn header(flags: u16, command: u16, offset: u64, length: u32) -> Header {
    Header {
        flags,
        command,
        cookie: 7,
        offset,
        length,
    }
}

#[test]
fn requests_are_refused_by_the_protocols_errors() {
    use NbdError::*;
    let e = export();
    let cases: &[(Header, Result<Command, NbdError>)] = &[
        (header(0, 0, 0, 512), Ok(Command::Read)),
        (header(0, 0, (1 << 20) - 512, 512), Ok(Command::Read)),
        (header(0, 0, 1 << 20, 512), Err(Inval)),
        (header(0, 1, 1 << 20, 512), Err(NoSpc)),
        (header(0, 6, 1 << 20, 512), Err(NoSpc)),
        (header(0, 4, 1 << 20, 512), Err(Inval)),
        (header(0, 0, u64::MAX - 511, 512), Err(Inval)),
        (header(0, 1, u64::MAX - 511, 1024), Err(NoSpc)),
        (header(0, 0, 0, 0), Err(Inval)),
        (header(0, 0, 1, 512), Err(Inval)),
        (header(0, 1, 0, 511), Err(Inval)),
        (header(0, 0, 0, 1 << 17), Err(Inval)),
        (header(0, 6, 0, 1 << 20), Ok(Command::WriteZeroes)),
        (header(0, 4, 0, 1 << 20), Ok(Command::Trim)),
        (header(FLAG_FUA, 1, 0, 512), Ok(Command::Write)),
        (header(FLAG_FUA, 0, 0, 512), Ok(Command::Read)),
        (
            header(FLAG_NO_HOLE | FLAG_FUA, 6, 0, 512),
            Ok(Command::WriteZeroes),
        ),
        (header(FLAG_NO_HOLE, 1, 0, 512), Err(Inval)),
        (header(1 << 4, 6, 0, 512), Err(Inval)),
        (header(FLAG_DF, 0, 0, 512), Err(Inval)),
        (header(1 << 15, 0, 0, 512), Err(Inval)),
        (header(0, 3, 0, 0), Ok(Command::Flush)),
        (header(0, 3, 0, 512), Err(Inval)),
        (header(0, 2, 0, 0), Ok(Command::Disc)),
        (header(0, 5, 0, 512), Err(Inval)),
        (header(0, 7, 0, 512), Err(Inval)),
        (header(0, 8, 0, 512), Err(Inval)),
        (header(0, 65535, 0, 512), Err(Inval)),
    ];
    for (h, expected) in cases {
        assert_eq!(&h.check(&e, false), expected, "{h:?}");
    }
    assert_eq!(
        header(FLAG_DF, 0, 0, 512).check(&e, true),
        Ok(Command::Read)
    );
    let read_only = Export {
        flags: flags::HAS_FLAGS | flags::READ_ONLY | flags::SEND_FLUSH,
        ..(*e).clone()
    };
    for command in [1, 4, 6] {
        assert_eq!(
            header(0, command, 0, 512).check(&read_only, false),
            Err(Perm)
        );
    }
    assert_eq!(
        header(0, 0, 0, 512).check(&read_only, false),
        Ok(Command::Read)
    );
    assert_eq!(
        header(FLAG_FUA, 0, 0, 512).check(&read_only, false),
        Err(Inval),
        "FUA was not offered"
    );
}

#[test]
fn reply_bytes() {
    let simple = ReplyHeader::simple(0x0102_0304_0506_0708, Err(NbdError::NoSpc));
    assert_eq!(
        simple.as_bytes(),
        [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 1, 2, 3, 4, 5, 6, 7, 8]
    );
    let data = ReplyHeader::offset_data(1, 0x200, 512, true);
    let expected = [
        &[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1][..],
        &1u64.to_be_bytes(),
        &520u32.to_be_bytes(),
        &0x200u64.to_be_bytes(),
    ];
    assert_eq!(data.as_bytes(), expected.concat());
    let error = ReplyHeader::error_at(1, NbdError::Io, 9, false);
    let expected = [
        &[0x66, 0x8e, 0x33, 0xef, 0, 0, 0x80, 2][..],
        &1u64.to_be_bytes(),
        &14u32.to_be_bytes(),
        &5u32.to_be_bytes(),
        &[0, 0],
        &9u64.to_be_bytes(),
    ];
    assert_eq!(error.as_bytes(), expected.concat());
    assert_eq!(ReplyHeader::error(1, NbdError::Io).as_bytes().len(), 26);
}

#[test]
fn errno_maps_to_the_protocol() {
    for (errno, expected) in [
        (1, 1),
        (13, 1),
        (30, 1),
        (5, 5),
        (12, 12),
        (22, 22),
        (28, 28),
        (122, 28),
        (27, 28),
        (95, 95),
        (110, 5),
    ] {
        let e = NbdError::from_io(&std::io::Error::from_raw_os_error(errno));
        assert_eq!(e.code(), expected, "errno {errno}");
        assert_eq!(NbdError::from_code(e.code()), e);
    }
}

/// Bytes of an option phase that are right for the most part.
fn hostile_input() -> impl Strategy<Value = Vec<u8>> {
    let one = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..64),
        (0u32..14, proptest::collection::vec(any::<u8>(), 0..48)).prop_map(|(k, d)| option(k, &d)),
        (
            6u32..8,
            proptest::collection::vec(0u16..5, 0..4),
            prop_oneof![Just("disk"), Just(""), Just("x")]
        )
            .prop_map(|(k, w, n)| option(k, &go(n, &w))),
        (any::<u32>(), 0usize..20_000).prop_map(|(k, n)| option(k, &vec![1; n])),
    ];
    (0u32..5, proptest::collection::vec(one, 0..6)).prop_map(|(flags, parts)| {
        let mut v = flags.to_be_bytes().to_vec();
        parts.into_iter().for_each(|p| v.extend(p));
        v
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// How the bytes are cut into pieces changes nothing.
    #[test]
    fn pieces_do_not_matter(input in hostile_input(), sizes in proptest::collection::vec(1usize..300, 1..20)) {
        let whole = feed(&mut Handshake::new(export()), &input, &[usize::MAX]);
        let pieces = feed(&mut Handshake::new(export()), &input, &sizes);
        prop_assert_eq!(&whole.0, &pieces.0);
        prop_assert_eq!(whole.1, pieces.1);
        replies_or_export(&whole.0, whole.1);
    }

    #[test]
    fn headers_round_trip(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) {
        let h = Header { flags, command, cookie, offset, length };
        prop_assert_eq!(Header::decode(&h.encode()), Ok(h));
    }

    #[test]
    fn other_magics_are_refused(bytes in proptest::array::uniform28(any::<u8>())) {
        let magic = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        prop_assume!(magic != 0x2560_9513);
        prop_assert_eq!(HEADER_LEN, bytes.len());
        prop_assert_eq!(Header::decode(&bytes), Err(BadMagic(magic)));
    }

    /// Whatever passes lies inside the export, in whole blocks.
    #[test]
    fn what_passes_is_inside(
        flags in prop_oneof![Just(0u16), 0u16..8, any::<u16>()],
        command in 0u16..10,
        offset in prop_oneof![0u64..3 << 19, any::<u64>(), (0u64..4096).prop_map(|b| b * 512)],
        length in prop_oneof![0u32..1 << 18, any::<u32>(), (0u32..300).prop_map(|b| b * 512)],
        structured: bool,
    ) {
        let (h, e) = (header(flags, command, offset, length), export());
        match h.check(&e, structured) {
            Ok(Command::Disc | Command::Flush) => {}
            Ok(c) => {
                prop_assert!(length > 0 && offset % 512 == 0 && length % 512 == 0);
                prop_assert!(offset + u64::from(length) <= e.size);
                if matches!(c, Command::Read | Command::Write) {
                    prop_assert!(length <= e.max_request);
                }
            }
            Err(e) => prop_assert!(matches!(e, NbdError::Inval | NbdError::NoSpc)),
        }
    }
}

/// Everything sent is well-formed.
fn replies_or_export(out: &[u8], step: Step) {
    match step {
        // The answer to EXPORT_NAME is no option reply.
        Step::Enter(_) if !out.ends_with(&[0, 0, 0, 1, 0, 0, 0, 0]) => {}
        _ => drop(replies(out)),
    }
}
