/* Strict isolation: a /dev of the job's own, in which the other cards have no nodes.
 *
 * The process that is to become the job isolates itself, so that its id, its parent, its signals and
 * its status stay what they are. What keeps a job from undoing it:
 *
 *   an ordinary user  The user namespace, without which that user could not do it either. The exec takes
 *                     the capabilities away that it gave. The kernel locks these mounts in any namespace
 *                     that the job makes for itself. /proc/PID/root, ptrace, setns and mknod find that
 *                     outside of it the job has no rights.
 *   root              Nothing. Root gets the mount namespace alone: in a user namespace of one id it
 *                     would be a stranger to all files but its own. It guards against accidents.
 *
 * /proc is left alone: with anything mounted there, the kernel would allow no /proc to containers that
 * the job starts, and /proc/driver/nvidia gives no access to a card, it only names them. */
#define _GNU_SOURCE
#include "keeper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

struct hidden {
  const char **paths;
  size_t count;
};

static int words_to; /* where a refusal is told */

static char *joined(const char *one, const char *other) {
  char *text;
  if (asprintf(&text, "%s%s", one, other) < 0) die("asprintf");
  return text;
}

/* ── Words for what forbids it ─────────────────────────────────────────────────────────────────── */

static const char *setting(const char *name, char *room, size_t size) { /* "": there is none */
  char path[128];
  ssize_t got = -1;
  snprintf(path, sizeof path, "/proc/sys/%s", name);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0) got = read(fd, room, size - 1);
  if (fd >= 0) close(fd);
  room[got > 0 ? got : 0] = 0;
  room[strcspn(room, "\n")] = 0;
  return room;
}

static bool is_set(const char *name, const char *value) {
  char room[32];
  return !strcmp(setting(name, room, sizeof room), value);
}

static bool is_filtered(void) {
  char line[256];
  int mode = 0;
  FILE *file = fopen("/proc/self/status", "re");
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "Seccomp: %d", &mode) == 1) break;
  if (file) fclose(file);
  return mode == 2;
}

#define IMPOSSIBLE "strict isolation is not possible here: "
#define USERNS "kernel.unprivileged_userns_clone"
#define APPARMOR "kernel.apparmor_restrict_unprivileged_userns"

__attribute__((noreturn)) static void forbidden(const char *doing, int code) {
  char user[32], mnt[32], self[4096] = "";
  bool root = geteuid() == 0, unshares = !strcmp(doing, "unshare");
  if ((code == ENOSPC || code == EUSERS) && unshares)
    refuse(words_to,
           IMPOSSIBLE "the limit of namespaces is reached (user.max_user_namespaces is %s,"
                      " user.max_mnt_namespaces is %s): an administrator can raise it",
           setting("user/max_user_namespaces", user, sizeof user),
           setting("user/max_mnt_namespaces", mnt, sizeof mnt));
  if (code == EPERM || code == EACCES) {
    if (!root && is_set("kernel/unprivileged_userns_clone", "0"))
      refuse(words_to, IMPOSSIBLE "users may make no namespaces (" USERNS
                                  " is 0): `sudo sysctl -w " USERNS "=1` allows it");
    if (!root && is_set("kernel/apparmor_restrict_unprivileged_userns", "1")) {
      if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) self[0] = 0;
      refuse(words_to,
             IMPOSSIBLE "AppArmor lets users make no namespaces (" APPARMOR
                        " is 1): `sudo sysctl -w " APPARMOR
                        "=0`, or a profile with `userns,` for %s, allows it",
             self);
    }
    if (root)
      refuse(words_to, IMPOSSIBLE
             "root may mount nothing here, as in a container: start it with `--cap-add SYS_ADMIN"
             " --security-opt apparmor=unconfined`, or with the cards it is to use");
    if (is_filtered())
      refuse(words_to, IMPOSSIBLE
             "a seccomp filter, as containers have, allows no namespaces: run outside of it, or"
             " start it with `--security-opt seccomp=unconfined --security-opt"
             " apparmor=unconfined`");
    if (unshares)
      refuse(words_to, IMPOSSIBLE
             "this process may make no namespaces (in a chroot nobody may but root)");
  }
  if ((code == EINVAL || code == ENOSYS) && access("/proc/self/ns/user", F_OK))
    refuse(words_to, IMPOSSIBLE "the kernel was built without user namespaces");
  refuse(words_to, IMPOSSIBLE "%s: %s", doing, strerror(code));
}

static void must_do(bool failed, const char *doing) {
  if (failed) forbidden(doing, errno);
}

/* ── The new /dev ──────────────────────────────────────────────────────────────────────────────── */

static void mount_at(const char *source, const char *target, const char *kind, unsigned long flags,
                     const char *data) {
  if (!mount(source, target, kind, flags, data)) return;
  int code = errno;
  forbidden(joined("mount ", target), code);
}

static void write_ids(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  must_do(fd < 0 || write(fd, text, strlen(text)) < 0, path);
  close(fd);
}

static void enter_namespaces(void) {
  uid_t uid = geteuid();
  gid_t gid = getegid();
  char ids[64];
  must_do(unshare(uid ? CLONE_NEWNS | CLONE_NEWUSER : CLONE_NEWNS), "unshare");
  if (!uid) return;
  write_ids("/proc/self/setgroups", "deny");
  snprintf(ids, sizeof ids, "%u %u 1", (unsigned)uid, (unsigned)uid);
  write_ids("/proc/self/uid_map", ids);
  snprintf(ids, sizeof ids, "%u %u 1", (unsigned)gid, (unsigned)gid);
  write_ids("/proc/self/gid_map", ids);
}

static bool is_hidden(const struct hidden *hidden, const char *place) {
  for (size_t i = 0; i < hidden->count; i++)
    if (!strcmp(hidden->paths[i], place)) return true;
  return false;
}

static bool hides_below(const struct hidden *hidden, const char *place) {
  size_t size = strlen(place);
  for (size_t i = 0; i < hidden->count; i++)
    if (!strncmp(hidden->paths[i], place, size) && hidden->paths[i][size] == '/') return true;
  return false;
}

static void show_node(const char *source, const char *place) {
  int fd = open(place, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  must_do(fd < 0, place);
  close(fd);
  if (!mount(source, place, NULL, MS_BIND, NULL)) return;
  if (errno == ENOENT) { /* the node vanished meanwhile */
    must_do(unlink(place), place);
    return;
  }
  int code = errno;
  forbidden(joined("mount ", place), code);
}

static bool is_link(const char *path) {
  struct stat seen;
  return !lstat(path, &seen) && S_ISLNK(seen.st_mode);
}

/* `beside` is the ptmx that is in the directory's own. */
static void show_directory(const char *source, const char *place, const char *beside) {
  must_do(mkdir(place, 0777), place);
  if (!strcmp(place, "/dev/pts") && !is_link(beside))
    mount_at("devpts", place, "devpts", MS_NOSUID, "newinstance,ptmxmode=0666,mode=620");
  else
    mount_at(source, place, NULL, MS_BIND | MS_REC, NULL);
}

static void show_link(const char *source, const char *place) {
  char target[4096];
  ssize_t size = readlink(source, target, sizeof target - 1);
  must_do(size < 0, source);
  target[size] = 0;
  must_do(symlink(target, place), place);
}

static void show_all_but(const struct hidden *hidden, const char *source, const char *target) {
  DIR *dir = opendir(source);
  char *from_folder = joined(source, "/"), *to_folder = joined(target, "/");
  char *ptmx = joined(from_folder, "ptmx");
  must_do(!dir, source);
  for (struct dirent *e; (e = readdir(dir));) {
    struct stat seen;
    char *from = joined(from_folder, e->d_name), *place = joined(to_folder, e->d_name);
    bool listed = strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && !is_hidden(hidden, place);
    if (listed && !lstat(from, &seen)) {
      if (S_ISLNK(seen.st_mode)) {
        show_link(from, place);
      } else if (!strcmp(place, "/dev/ptmx")) {
        must_do(symlink("pts/ptmx", place), place);
      } else if (!S_ISDIR(seen.st_mode)) {
        show_node(from, place);
      } else if (hides_below(hidden, place)) {
        must_do(mkdir(place, 0777) || chmod(place, seen.st_mode & 07777), place);
        show_all_but(hidden, from, place);
      } else {
        show_directory(from, place, ptmx);
      }
    }
    free(from), free(place);
  }
  closedir(dir);
  free(from_folder), free(to_folder), free(ptmx);
}

static void remake_dev(const struct hidden *hidden) {
  char source[64];
  int old = open("/dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  must_do(old < 0, "/dev");
  snprintf(source, sizeof source, "/proc/self/fd/%d", old);
  mount_at("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755");
  show_all_but(hidden, source, "/dev");
  mount_at(NULL, "/dev", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID, NULL);
  close(old);
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  must_do(null < 0 || dup2(null, 0) < 0, "/dev/null"); /* the one of before was opened outside */
  close(null);
}

void isolate(const char **paths, size_t count, int pipe) {
  struct hidden hidden = {paths, count};
  words_to = pipe;
  enter_namespaces();
  /* First of all: on most systems our mounts would otherwise appear in everybody's /dev. */
  mount_at(NULL, "/", NULL, MS_SLAVE | MS_REC, NULL);
  remake_dev(&hidden);
}
