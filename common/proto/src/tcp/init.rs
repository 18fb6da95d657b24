//! ICReq and ICResp: what the two ends agree on (TCP Transport 1.0, sections 3.1, 3.6.2.2 and 3.6.2.3).

use ringfab_spec::FromBytes;
use ringfab_spec::tcp::{Digests, IcReq, IcResp, MAXH2CDATA_MIN, PDA_MAX, PFV, field};

use super::error::Violation;

/// What a controller brings to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// Digests that a host gets when it asks for them.
    pub digests: Digests,
    /// What we want data to be aligned to, in dwords (CPDA): 1 to 32.
    pub alignment_dwords: u8,
    /// The most data of a command capsule, in bytes.
    pub capsule_bytes_max: u32,
    /// The most data of an H2CData PDU (MAXH2CDATA), in bytes: at least 4096.
    pub h2c_bytes_max: u32,
    /// The most transfers from the host at a time, which is the most commands.
    pub transfers_max: u16,
    /// Data that miss at least this many bytes are received straight in their place.
    pub direct_bytes_min: u32,
}

/// What a host brings to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// Digests that shall be used; a controller that does without is refused.
    pub digests: Digests,
    /// What we want data to be aligned to, in dwords (HPDA): 1 to 32.
    pub alignment_dwords: u8,
    /// The most R2T outstanding for a command (MAXR2T): at least 1.
    pub r2ts_max: u32,
    /// Slots for commands. A command's slot is the low bits of its identifier, as many as the slots need.
    pub commands_max: u16,
    /// Data that miss at least this many bytes are received straight in their place.
    pub direct_bytes_min: u32,
}

/// What was agreed on, as far as one side has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Digests that are used.
    pub digests: Digests,
    /// What data in PDUs to the peer are aligned to, in bytes.
    pub peer_alignment: usize,
    /// MAXH2CDATA.
    pub h2c_bytes_max: u32,
}

impl ControllerConfig {
    pub(super) fn agree(&self, header: &[u8]) -> Result<(Negotiated, IcResp), Violation> {
        let request =
            IcReq::read_from_prefix(header).map_or_else(|_| IcReq::zeroed(), |(request, _)| request);
        check_version(request.pfv.get())?;
        let peer_alignment = alignment(request.hpda_z)?;
        let wanted = request.dgst;
        let digests = Digests::default()
            .with_header(wanted.header() && self.digests.header())
            .with_data(wanted.data() && self.digests.data());
        let response = IcResp::new(self.alignment_dwords, digests, self.h2c_bytes_max);
        Ok((Negotiated { digests, peer_alignment, h2c_bytes_max: self.h2c_bytes_max }, response))
    }
}

impl HostConfig {
    pub(super) fn request(&self) -> IcReq {
        IcReq::new(self.alignment_dwords, self.digests, self.r2ts_max)
    }

    pub(super) fn agree(&self, header: &[u8]) -> Result<Negotiated, Violation> {
        let response =
            IcResp::read_from_prefix(header).map_or_else(|_| IcResp::zeroed(), |(response, _)| response);
        check_version(response.pfv.get())?;
        let peer_alignment = alignment(response.cpda_z)?;
        let digests = Digests::default().with_header(response.dgst.header()).with_data(response.dgst.data());
        let unasked = |used: bool, asked: bool| used && !asked;
        if unasked(digests.header(), self.digests.header()) || unasked(digests.data(), self.digests.data()) {
            return Err(Violation::field(field::DGST, "a digest that was not asked for"));
        }
        if digests != self.digests {
            return Err(Violation::unsupported(field::DGST, "other digests than were asked for"));
        }
        let h2c_bytes_max = response.maxh2cdata.get();
        if h2c_bytes_max < MAXH2CDATA_MIN {
            return Err(Violation::field(field::LIMIT, "a MAXH2CDATA below the least"));
        }
        // Data after the first PDU of a transfer stay aligned to dwords.
        Ok(Negotiated { digests, peer_alignment, h2c_bytes_max: h2c_bytes_max & !3 })
    }
}

fn check_version(pfv: u16) -> Result<(), Violation> {
    if pfv == PFV { Ok(()) } else { Err(Violation::unsupported(field::PFV, "an unknown PDU format version")) }
}

/// The largest alignment of data, in bytes.
pub(super) const ALIGNMENT_MAX: usize = (PDA_MAX as usize + 1) * 4;

/// An alignment in bytes, of the field that counts dwords from zero.
fn alignment(pda_z: u8) -> Result<usize, Violation> {
    if pda_z > PDA_MAX {
        return Err(Violation::field(field::PDA, "an alignment of more than 32 dwords"));
    }
    Ok((usize::from(pda_z) + 1) * 4)
}
