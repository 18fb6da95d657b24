# Our initiator looks at the kernel's target, whose names need not have the usual form.
start_kernel_target $nqn
start_another_subsystem testnqn
ringfab discover "nvme+rdma://$theirs:4420" >/tmp/found
cat /tmp/found
grep -q $nqn /tmp/found
grep -q testnqn /tmp/found
ringfab list "$(url $nqn)"
ringfab list "$(url testnqn hostnqn=testhost)"
expect model "$(ringfab --json id-ctrl "$(url $nqn)" | jq -r .mn | xargs)" Linux
expect blocks "$(ringfab --json id-ns "$(url $nqn ns=1)" | jq .nsze)" $((256 * 2048))
ringfab smart "$(url $nqn)"

echo "--- connecting again and again"
for _ in {1..5}; do ringfab list "$(url $nqn queues=4)" >/dev/null; done

echo "--- refused"
! ringfab list "$(url nqn.2026-11.org.ringfab:nowhere)" 2>/tmp/said
cat /tmp/said
grep -q 'Connect' /tmp/said
echo 0 >$nvmet/subsystems/testnqn/attr_allow_any_host
! ringfab list "$(url testnqn hostnqn=testhost)" 2>/tmp/said
cat /tmp/said
mkdir $nvmet/hosts/testhost
ln -s $nvmet/hosts/testhost $nvmet/subsystems/testnqn/allowed_hosts/
ringfab list "$(url testnqn hostnqn=testhost)"
rm $nvmet/subsystems/testnqn/allowed_hosts/testhost
