//! How long a CRC32C takes, by length: the best of some rounds, from the caches.

#![allow(clippy::print_stdout, reason = "a figure is what it is for")]

use std::hint::black_box;
use std::time::{Duration, Instant};

fn main() {
    for length in [16_u32, 36, 72, 96, 128, 256, 1024, 4096, 16_384, 65_536] {
        let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
        let times = (1 << 24) / length.max(64);
        let rounds = (0..9).map(|_| {
            let begun = Instant::now();
            for _ in 0..times {
                black_box(ringfab_crc::update(black_box(ringfab_crc::START), black_box(&bytes)));
            }
            begun.elapsed()
        });
        let best = rounds.min().unwrap_or(Duration::MAX).as_secs_f64() / f64::from(times);
        println!("{length:6} B {:8.1} ns {:6.2} GB/s", best * 1e9, f64::from(length) / best / 1e9);
    }
}
