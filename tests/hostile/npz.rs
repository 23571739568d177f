//! Archives that unpack to far more than their size, and clients that leave during unpacking.

use std::time::Duration;

use crate::attack::Attack;
use crate::http1::Request;
use crate::payloads::MIB;
use crate::payloads::npy::array;
use crate::payloads::zip::{Member, archive, overlapping, zip64};

const NPZ: &str = "application/x-npz";
const JSON: &str = "application/json";

/// Members of zeros, of these sizes in MiB, compressed by deflate.
fn zeros(members: usize, mib: usize) -> Vec<u8> {
    let bytes = mib * MIB;
    let member = Member::deflated("0.npy".to_owned(), &array("|u1", false, &[bytes as u64], &vec![0; bytes]));
    let members: Vec<Member> = (0..members).map(|index| member.named(format!("{index}.npy"))).collect();
    archive(&members)
}

/// Picks a missing field, so that the answer is short.
fn pick_missing(archive: Vec<u8>) -> Request {
    Request::post("/pick", NPZ, archive)
}

#[test]
fn sixteen_archives_of_250_mib() {
    needs_binary!();
    let request = pick_missing(zeros(5, 50)).gzip();
    assert!(request.body.len() < 4000, "{}", request.body.len());
    Attack::new("npz: 16 × five members of 50 MiB, gzip").run(|target| target.repeat(&request, 16));
}

#[test]
fn archives_whose_clients_leave() {
    needs_binary!();
    let request = pick_missing(zeros(5, 50)).gzip();
    Attack::new("npz: 400 × the same, reset by the client")
        .run(|target| target.reset_early(&request, 400, Duration::ZERO));
}

#[test]
fn archives_whose_clients_leave_during_decompression() {
    needs_binary!();
    let request = pick_missing(zeros(5, 50));
    Attack::new("npz: 200 × the same, reset after 20 ms")
        .run(|target| target.reset_early(&request, 200, Duration::from_millis(20)));
}

/// Small when compressed, so it looks quick to process.
#[test]
fn short_bodies_at_four_kilobytes_a_second() {
    needs_binary!();
    let request = pick_missing(zeros(2, 50)).gzip();
    Attack::new("npz: bodies of 1.4 kB at 4 kB/s").lasting(Duration::from_secs(2)).run(|target| {
        target.run_clients(3, |_| {
            while target.is_running() {
                target.exchange(&request);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
    });
}

#[test]
fn an_archive_with_the_most_members() {
    needs_binary!();
    let member = Member::stored("0.npy".to_owned(), &array("|u1", false, &[0], &[]));
    let members: Vec<Member> = (0..65_535).map(|index| member.named(format!("{index}.npy"))).collect();
    let requests = [&members[..65_534], &members].map(|members| pick_missing(archive(members)).gzip());
    Attack::new("npz: 65,534 and 65,535 members, gzip").run(|target| {
        target.run_clients(4, |index| target.repeat(&requests[index % 2], 1));
    });
}

#[test]
fn overlapping_and_false_members() {
    needs_binary!();
    let bytes = 50 * MIB;
    let member = Member::deflated("0.npy".to_owned(), &array("|u1", false, &[bytes as u64], &vec![0; bytes]));
    let requests = [overlapping(&member, 5), zip64()].map(pick_missing);
    Attack::new("npz: five members that overlap, and one of 2^40 bytes by zip64").run(|target| {
        target.run_clients(4, |index| target.repeat(&requests[index % 2], 1));
    });
}

/// Each member becomes a megabyte of brackets in the JSON answer.
#[test]
fn members_with_empty_axes() {
    needs_binary!();
    let empty = array("|u1", false, &crate::payloads::npy::empty_axes(), &[]);
    let member = Member::deflated("0.npy".to_owned(), &empty);
    let members: Vec<Member> = (0..64).map(|index| member.named(format!("{index}.npy"))).collect();
    let request = Request::post("/keep", NPZ, archive(&members)).accept(JSON);
    Attack::new("npz: 64 members of shape 2^20, 1 × 29, 0, answered as JSON").run(|target| target.repeat(&request, 2));
}
