# A file system on our namespace, used by the kernel, checked, and found again after a new connection.
start_target
connect -i 4
mkfs.ext4 -q -F $ns1
mkdir -p /tmp/mounted
mount -o discard $ns1 /tmp/mounted
cp -r /usr/lib/python3*/[a-j]*.py /usr/share/perl/*/[A-F]* /tmp/mounted/ 2>/dev/null || cp -r /etc/. /tmp/mounted/
(cd /tmp/mounted && find . -type f -print0 | sort -z | xargs -0 sha256sum) >/tmp/sums
echo "$(wc -l </tmp/sums) files"
(($(wc -l </tmp/sums) > 20)) || fail "too few files"
rm -rf /tmp/mounted/a* && grep -v '  \./a' /tmp/sums >/tmp/sums.kept
fstrim -v /tmp/mounted
umount /tmp/mounted
fsck.ext4 -f -n $ns1
nvme disconnect -n $nqn
connect -i 1
mount -o ro $ns1 /tmp/mounted
(cd /tmp/mounted && sha256sum --quiet -c /tmp/sums.kept)
umount /tmp/mounted
no_io_errors
