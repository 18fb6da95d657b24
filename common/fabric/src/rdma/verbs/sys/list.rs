//! The devices of this machine, opened to be looked at.

use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;

use rdma_sys as ffi;

use super::{Context, DeviceLimits, check_code, made};

/// A list of the devices of this machine, for [`crate::rdma::devices`].
pub(crate) struct DeviceList {
    list: NonNull<*mut ffi::ibv_device>,
    count: usize,
}

impl DeviceList {
    pub(crate) fn new() -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: the list is written on success, and freed by `Drop`.
        let list = made(unsafe { ffi::ibv_get_device_list(&raw mut count) })?;
        Ok(Self { list, count: usize::try_from(count).unwrap_or(0) })
    }

    /// Every device: its name, and whether it could be opened.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (String, io::Result<OpenDevice<'_>>)> {
        (0..self.count).map(|index| {
            // SAFETY: the list has so many entries and lives as long as `self`.
            let device = unsafe { *self.list.as_ptr().add(index) };
            // SAFETY: the device lives with the list; its name is a string inside it.
            let name = unsafe { CStr::from_ptr(ffi::ibv_get_device_name(device)) };
            // SAFETY: as above.
            let opened = made(unsafe { ffi::ibv_open_device(device) });
            (name.to_string_lossy().into_owned(), opened.map(|raw| OpenDevice(Context(raw), PhantomData)))
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: it is the list that the library made; what was opened from it is closed before, as it borrows it.
        unsafe { ffi::ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// A device that was opened to look at it.
pub(crate) struct OpenDevice<'a>(Context, PhantomData<&'a DeviceList>);

/// What a port says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) active: bool,
    pub(crate) ethernet: bool,
    pub(crate) gids: i32,
    /// Bytes of payload of a packet.
    pub(crate) mtu: u32,
}

impl OpenDevice<'_> {
    pub(crate) fn limits(&self) -> io::Result<DeviceLimits> {
        self.0.limits()
    }

    /// How many ports it has, numbered from one.
    pub(crate) fn ports(&self) -> io::Result<u8> {
        // SAFETY: all zeroes is a valid value; the context is open.
        let mut attributes: ffi::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        check_code(unsafe { ffi::ibv_query_device(self.0.0.as_ptr(), &raw mut attributes) })?;
        Ok(attributes.phys_port_cnt)
    }

    pub(crate) fn port(&self, number: u8) -> io::Result<Port> {
        self.0.port(number)
    }

    /// An entry of a port's table of addresses; `None` where it is empty.
    pub(crate) fn gid(&self, port: u8, index: i32) -> Option<[u8; 16]> {
        let mut gid = ffi::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open; the address is written on success.
        let result = unsafe { ffi::ibv_query_gid(self.0.0.as_ptr(), port, index, &raw mut gid) };
        // SAFETY: any bytes are valid.
        let raw = unsafe { gid.raw };
        (result == 0 && raw != [0; 16]).then_some(raw)
    }
}

impl Context {
    pub(crate) fn port(self, number: u8) -> io::Result<Port> {
        // SAFETY: all zeroes is a valid value; the context is open.
        let mut attributes: ffi::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        check_code(unsafe { ffi::___ibv_query_port(self.0.as_ptr(), number, &raw mut attributes) })?;
        Ok(Port {
            active: attributes.state == ffi::ibv_port_state::IBV_PORT_ACTIVE,
            ethernet: attributes.link_layer == 2,
            gids: attributes.gid_tbl_len,
            mtu: 128 << attributes.active_mtu.min(5),
        })
    }
}

impl Drop for OpenDevice<'_> {
    fn drop(&mut self) {
        // SAFETY: it was opened by `DeviceList::iter` and is used by nobody else.
        unsafe { ffi::ibv_close_device(self.0.0.as_ptr()) };
    }
}
