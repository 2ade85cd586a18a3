"""Programs that look for somebody to talk to: the internet, the machine, the service, each other."""

from __future__ import annotations

from sandbox.selfcheck.model import powerless

CONNECT = """
import socket
def reach(what, family, kind, address):
    def attempt():
        with socket.socket(family, kind) as one:
            one.settimeout(2)
            one.connect(address)
            if kind == socket.SOCK_DGRAM:
                one.send(b"x")
    refused(what, attempt)
"""

PROGRAMS = (
    powerless(
        "network-tcp",
        "no host can be connected to: not the internet, not a metadata service, not the machine itself",
        CONNECT
        + """
for host in ("1.1.1.1", "8.8.8.8", "169.254.169.254", "172.17.0.1", "10.0.0.1", "127.0.0.1"):
    for port in (22, 53, 80, 443, 2375, 6379):
        reach(f"{host}:{port}", socket.AF_INET, socket.SOCK_STREAM, (host, port))
reach("IPv6", socket.AF_INET6, socket.SOCK_STREAM, ("2606:4700:4700::1111", 53))
reach("IPv6 loopback", socket.AF_INET6, socket.SOCK_STREAM, ("::1", 22))
""",
    ),
    powerless(
        "network-udp",
        "no datagram leaves",
        CONNECT
        + """
for host in ("1.1.1.1", "8.8.8.8", "172.17.0.1", "255.255.255.255", "224.0.0.1"):
    reach(host, socket.AF_INET, socket.SOCK_DGRAM, (host, 53))
""",
    ),
    powerless(
        "network-names",
        "no name is resolved",
        """
import socket, urllib.request
for name in ("example.org", "pypi.org", "host.docker.internal", "gateway.docker.internal"):
    refused(name, lambda: socket.getaddrinfo(name, 80))
refused("http", lambda: urllib.request.urlopen("http://example.org", timeout=2))
""",
    ),
    powerless(
        "network-interfaces",
        "there is no interface but loopback",
        """
try:
    names = [line.partition(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
except OSError:
    names = []
breaches += [name for name in names if name not in ("lo", "tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0",
                                                    "ip_vti0", "ip6_vti0", "ip6gre0")]
""",
        not_on={"landlock": "the interfaces' names can be read, and no socket can be made"},
    ),
    powerless(
        "sockets-of-all-kinds",
        "no socket but a connected pair can be made: raw, packet, netlink, vsock and the rest",
        """
import socket
families = dict(unix=1, inet=2, ax25=3, ipx=4, inet6=10, netlink=16, packet=17, rds=21, can=29, tipc=30, bluetooth=31,
                alg=38, nfc=39, vsock=40, kcm=41, qipcrtr=42, smc=43, xdp=44)
for name, family in families.items():
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        refused(f"{name} {kind}", lambda: socket.socket(family, kind))
""",
    ),
    powerless(
        "listening",
        "a call cannot offer a service to others",
        """
import socket
for host in ("127.0.0.1", "0.0.0.0"):
    refused(f"tcp {host}", lambda: socket.create_server((host, 0)))
def offer(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path)
        one.listen()
refused("a socket file", lambda: offer("socket"))
refused("an abstract socket", lambda: offer("\\0rstar2-selfcheck"))
""",
    ),
    powerless(
        "service-socket",
        "the service's own sockets cannot be reached from inside",
        CONNECT
        + """
reach("endpoint", socket.AF_UNIX, socket.SOCK_STREAM, "@ENDPOINT@")
for path in ("/run/private/sock/server.sock", "/var/run/docker.sock", "/run/docker.sock",
             "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket"):
    reach(path, socket.AF_UNIX, socket.SOCK_STREAM, path)
""",
    ),
    powerless(
        "service-port",
        "nor its HTTP port",
        CONNECT
        + """
import urllib.parse, urllib.request
url = urllib.parse.urlparse("@HTTP_URL@")
if url.hostname:
    reach("port", socket.AF_INET, socket.SOCK_STREAM, (url.hostname, url.port))
    refused("health", lambda: urllib.request.urlopen(url.geturl() + "/health", timeout=2))
""",
    ),
    powerless(
        "abstract-sockets",
        "no socket without a file can be reached either",
        CONNECT
        + """
names = []
try:
    names = [line.split()[-1][1:] for line in open("/proc/net/unix") if line.split()[-1].startswith("@")]
except OSError:
    pass
for name in [*names[:50], "/containerd-shim", "/tmp/.X11-unix/X0"]:
    reach(name, socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + name)
""",
    ),
)
