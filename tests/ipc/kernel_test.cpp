// SPDX-License-Identifier: Apache-2.0
// ipc tests: answers of the kernel that come seldom: interrupted calls, no memory, and older
// kernels.
#include "ipc/kernel.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "ipc/raw.hpp"

namespace vpmm::ipc_test::kernel_test {
namespace {

using ipc::Channel;
using ipc::Message;
using ipc::MessageKind;
using std::chrono::milliseconds;

constexpr std::uint64_t kAlways = 1'000'000'000;
constexpr milliseconds kAWhile{200};
constexpr std::uint64_t kOnceInAMillisecond = 201;  // in that time, at most

ipc::Deadline now() { return ipc::Clock::now(); }

// Both ends of a connection.
class IpcKernel : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(listener_.ok());
    Result<Channel> made = ipc::connect_to(path_, soon());
    ASSERT_TRUE(made.ok());
    near_ = std::move(made).value();
    far_ = accept();
    ASSERT_TRUE(far_);
  }
  void TearDown() override {
    for (const KernelCall call :
         {KernelCall::accept, KernelCall::bind, KernelCall::connect, KernelCall::getrandom,
          KernelCall::getsockopt, KernelCall::plain_receive, KernelCall::receive, KernelCall::send,
          KernelCall::setsockopt, KernelCall::socket})
      fail_kernel_call(call, 0, 0);
    std::filesystem::remove(path_);
  }
  Channel accept() {
    is_short_ = false;
    return ipc::accept_from(listener_.value().get(), is_short_);
  }
  void expect_heard(std::uint64_t number) {
    const std::optional<Message> heard = next_from(far_);
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->number, number);
  }

  const std::string path_ = socket_folder_of_tests() + "/kernel.sock";
  Result<ipc::Descriptor> listener_ = ipc::listen_at(path_);
  Channel near_;
  Channel far_;
  bool is_short_ = false;
};

std::string message_in(const Result<void>& outcome) {
  return outcome ? "" : outcome.error().message;
}
template <typename T>
std::string message_in(const Result<T>& outcome) {
  return outcome ? "" : outcome.error().message;
}

// --- messages

TEST_F(IpcKernel, that_has_no_room_for_a_message_yet_is_asked_again) {
  std::uint64_t number = 0;
  for (const int error : {EINTR, EAGAIN, ENOBUFS, ETOOMANYREFS}) {
    SCOPED_TRACE(error);
    fail_kernel_call(KernelCall::send, error, 3);
    const Message message = message_of(MessageKind::close, ++number);
    EXPECT_EQ(near_.try_send(message, {}, soon()), Channel::Sent::yes);
    EXPECT_EQ(kernel_calls(KernelCall::send), 4U);
    expect_heard(number);
    EXPECT_FALSE(far_.wait_to_receive(now())) << "it came once";
  }
}

TEST_F(IpcKernel, that_never_has_room_for_a_message_is_asked_until_the_deadline) {
  const Message message = message_of(MessageKind::close, 1);
  for (const int error : {EAGAIN, ENOBUFS, ETOOMANYREFS}) {
    SCOPED_TRACE(error);
    fail_kernel_call(KernelCall::send, error, kAlways);
    EXPECT_EQ(near_.try_send(message, {}, now()), Channel::Sent::not_now);
    EXPECT_EQ(kernel_calls(KernelCall::send), 1U);
  }
  for (const int error : {ENOBUFS, ETOOMANYREFS}) {
    SCOPED_TRACE(error);
    fail_kernel_call(KernelCall::send, error, kAlways);
    const Result<void> said = near_.send(message, {}, now() + kAWhile);
    EXPECT_EQ(message_in(said), "the other process does not answer");
    EXPECT_LE(kernel_calls(KernelCall::send), kOnceInAMillisecond);
  }
}

// Once more when there is room, or no time is left.
TEST_F(IpcKernel, without_room_is_not_asked_before_there_is_some) {
  const Message message = message_of(MessageKind::close, 1);
  while (near_.try_send(message, {}, now()) == Channel::Sent::yes) {
  }
  fail_kernel_call(KernelCall::send, 0, 0);
  EXPECT_EQ(near_.try_send(message, {}, now() + kAWhile), Channel::Sent::not_now);
  EXPECT_LE(kernel_calls(KernelCall::send), 2U);
}

TEST_F(IpcKernel, that_refuses_a_message_for_good_is_asked_once) {
  const Message message = message_of(MessageKind::close, 1);
  for (const int error : {EPIPE, ECONNRESET, ENOTCONN}) {
    SCOPED_TRACE(error);
    fail_kernel_call(KernelCall::send, error, kAlways);
    const Result<void> said = near_.send(message, {}, soon());
    EXPECT_EQ(message_in(said), "the other process is gone");
    EXPECT_EQ(kernel_calls(KernelCall::send), 1U);
  }
}

// Of a reset the messages before it are to be read none the less.
TEST_F(IpcKernel, that_interrupts_a_receipt_is_asked_again) {
  std::uint64_t number = 0;
  for (const Channel::Files files : {Channel::Files::none, Channel::Files::taken}) {
    for (const int error : {EINTR, EAGAIN, ECONNRESET}) {
      SCOPED_TRACE(error);
      send_by_hand(near_, message_of(MessageKind::close, ++number));
      fail_kernel_call(KernelCall::receive, error, 2);
      const auto received = far_.receive(soon(), files);
      ASSERT_TRUE(received.ok() && received.value()) << message_in(received);
      EXPECT_EQ(received.value()->message.number, number);
      EXPECT_EQ(kernel_calls(KernelCall::receive), 3U);
    }
    send_by_hand(near_, message_of(MessageKind::close, ++number));
    fail_kernel_call(KernelCall::receive, EIO);
    EXPECT_EQ(message_in(far_.receive(soon(), files)), "receiving failed: Input/output error");
    EXPECT_TRUE(far_.receive(soon(), files).ok());
  }
}

// Whatever a call before it left behind.
TEST_F(IpcKernel, tells_the_end_of_the_other_side_once) {
  near_.reset();
  for (const Channel::Files files : {Channel::Files::none, Channel::Files::taken}) {
    errno = EAGAIN;
    fail_kernel_call(KernelCall::receive, 0, 0);
    const auto received = far_.receive(soon(), files);
    ASSERT_TRUE(received.ok()) << message_in(received);
    EXPECT_FALSE(received.value());
    EXPECT_EQ(kernel_calls(KernelCall::receive), 1U);
  }
}

// As of a child that was forked while the connection was closed.
TEST_F(IpcKernel, that_gave_the_connection_to_another_process_too_tells_its_end) {
  const int inherited = fcntl(near_.get(), F_DUPFD_CLOEXEC, 0);
  ASSERT_GE(inherited, 0);
  near_.reset();
  EXPECT_TRUE(is_hung_up_on(far_));
  ::close(inherited);
}

std::uint64_t open_files() { return own_descriptors().all; }

TEST_F(IpcKernel, that_passes_any_descriptors_on_leaves_those_that_nobody_takes) {
  become_older_kernel();
  std::filesystem::remove(path_);
  listener_ = ipc::listen_at(path_);
  near_ = std::move(ipc::connect_to(path_, soon())).value();
  far_ = accept();
  for (const Channel::Files files : {Channel::Files::none, Channel::Files::taken}) {
    const std::uint64_t before = open_files();
    const Message message = message_of(MessageKind::close, 7);
    ASSERT_TRUE(send_with_copies_of(STDERR_FILENO, near_, &message, sizeof message, 3));
    {
      const auto received = far_.receive(soon(), files);
      EXPECT_EQ(received.ok(), files == Channel::Files::taken);
      EXPECT_EQ(open_files(), before + (files == Channel::Files::taken ? 3 : 0));
    }
    EXPECT_EQ(open_files(), before);
  }
}

// Numbers of a process and its user, which are no descriptors.
TEST_F(IpcKernel, that_says_more_about_a_message_than_its_descriptors_is_not_misread) {
  constexpr int kYes = 1;
  ASSERT_EQ(setsockopt(far_.get(), SOL_SOCKET, SO_PASSCRED, &kYes, sizeof kYes), 0);
  const Message message = message_of(MessageKind::close, 8);
  ASSERT_TRUE(send_with_copies_of(STDERR_FILENO, near_, &message, sizeof message, 0));
  const auto received = far_.receive(soon());
  ASSERT_TRUE(received.ok() && received.value()) << message_in(received);
  EXPECT_EQ(received.value()->message.number, 8U);
  EXPECT_TRUE(received.value()->files.empty());
}

// So that calls that wait return early.
class EndlessSignals {
 public:
  EndlessSignals() {
    struct sigaction noticed {};
    noticed.sa_handler = [](int) {};
    sigaction(SIGALRM, &noticed, &before_);
    set(milliseconds(1));
  }
  ~EndlessSignals() {
    set(milliseconds(0));
    sigaction(SIGALRM, &before_, nullptr);
  }
  EndlessSignals(const EndlessSignals&) = delete;
  EndlessSignals& operator=(const EndlessSignals&) = delete;

 private:
  static void set(std::chrono::microseconds period) {
    const timeval each{0, period.count()};
    const itimerval timer{each, each};
    setitimer(ITIMER_REAL, &timer, nullptr);
  }
  struct sigaction before_ {};
};

void block_signals() {
  sigset_t all{};
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

TEST_F(IpcKernel, that_interrupts_a_wait_for_a_message_is_asked_to_go_on) {
  std::thread late([&] {
    block_signals();
    std::this_thread::sleep_for(milliseconds(50));
    static_cast<void>(near_.try_send(message_of(MessageKind::close, 5), {}, soon()));
  });
  bool has_come = false;
  {
    const EndlessSignals signals;
    has_come = far_.wait_to_receive(soon());
  }
  late.join();
  EXPECT_TRUE(has_come);
  expect_heard(5);
}

TEST_F(IpcKernel, that_interrupts_a_wait_for_room_is_asked_to_go_on) {
  const Message message = message_of(MessageKind::close, 5);
  while (near_.try_send(message, {}, now()) == Channel::Sent::yes) {
  }
  std::thread late([&] {
    block_signals();
    std::this_thread::sleep_for(milliseconds(50));
    while (far_.wait_to_receive(now())) next_from(far_);
  });
  Channel::Sent sent{};
  {
    const EndlessSignals signals;
    sent = near_.try_send(message, {}, soon());
  }
  late.join();
  EXPECT_EQ(sent, Channel::Sent::yes);
}

// --- connections

TEST_F(IpcKernel, that_loses_a_connection_before_it_is_accepted_has_others) {
  for (const int error : {EINTR, ECONNABORTED}) {
    SCOPED_TRACE(error);
    const Result<Channel> waiting = ipc::connect_to(path_, soon());
    ASSERT_TRUE(waiting.ok());
    fail_kernel_call(KernelCall::accept, error, 2);
    EXPECT_TRUE(accept());
    EXPECT_FALSE(is_short_);
    EXPECT_EQ(kernel_calls(KernelCall::accept), 3U);
  }
}

TEST_F(IpcKernel, that_is_short_of_something_is_told_from_one_without_connections) {
  for (const int error : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
    SCOPED_TRACE(error);
    fail_kernel_call(KernelCall::accept, error);
    EXPECT_FALSE(accept());
    EXPECT_TRUE(is_short_);
    EXPECT_EQ(kernel_calls(KernelCall::accept), 1U);
  }
  EXPECT_FALSE(accept());
  EXPECT_FALSE(is_short_) << "nobody waits";
  ASSERT_EQ(shutdown(listener_.value().get(), SHUT_RD), 0);
  EXPECT_FALSE(accept());
  EXPECT_FALSE(is_short_) << "nobody can come any more";
}

TEST_F(IpcKernel, that_refuses_a_connection_says_why) {
  const std::string gone = "the process that exported the memory is gone, or uses another";
  for (const auto& [error, why] :
       {std::pair(ENOENT, gone), std::pair(ECONNREFUSED, gone),
        std::pair(EACCES, "the process that exported the memory cannot be reached at " + path_ +
                              ": Permission denied")}) {
    fail_kernel_call(KernelCall::connect, error);
    const Result<Channel> refused = ipc::connect_to(path_, soon());
    ASSERT_FALSE(refused.ok()) << why;
    EXPECT_EQ(refused.error().code, ErrorCode::not_shared);
    EXPECT_EQ(refused.error().message.substr(0, why.size()), why);
    EXPECT_EQ(kernel_calls(KernelCall::connect), 1U);
  }
  fail_kernel_call(KernelCall::socket, EMFILE);
  const Result<Channel> none = ipc::connect_to(path_, soon());
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::host_out_of_memory);
  EXPECT_EQ(none.error().message, "no socket can be made: Too many open files");
}

TEST_F(IpcKernel, with_too_many_connections_that_wait_is_asked_again_until_the_deadline) {
  for (const int error : {EAGAIN, EINTR}) {
    SCOPED_TRACE(error);
    fail_kernel_call(KernelCall::connect, error, 3);
    EXPECT_TRUE(ipc::connect_to(path_, soon()).ok());
    EXPECT_EQ(kernel_calls(KernelCall::connect), 4U);
    fail_kernel_call(KernelCall::connect, error, kAlways);
    const std::string late = "the process that exported the memory does not answer";
    EXPECT_EQ(message_in(ipc::connect_to(path_, now())), late);
    EXPECT_EQ(kernel_calls(KernelCall::connect), 1U);
    EXPECT_EQ(message_in(ipc::connect_to(path_, now() + kAWhile)), late);
    EXPECT_LE(kernel_calls(KernelCall::connect), 1 + kOnceInAMillisecond);
    fail_kernel_call(KernelCall::connect, 0, 0);
  }
}

TEST_F(IpcKernel, that_lets_no_name_be_bound_is_quoted_and_nothing_is_left) {
  const std::string other = socket_folder_of_tests() + "/unbound.sock";
  fail_kernel_call(KernelCall::bind, EROFS);
  const auto refused = ipc::listen_at(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::bad_file);
  EXPECT_EQ(refused.error().message,
            "no socket can be made at " + other + ": Read-only file system");
  EXPECT_FALSE(ipc::socket_file(other + ".new").has_value());
  fail_kernel_call(KernelCall::socket, ENFILE);
  EXPECT_EQ(message_in(ipc::listen_at(other)),
            "no socket can be made at " + other + ": Too many open files in system");
}

// --- the other end

bool is_over(const ipc::Descriptor& watched) {
  pollfd asked{watched.get(), POLLIN, 0};
  return poll(&asked, 1, 0) > 0;
}

TEST_F(IpcKernel, tells_who_is_at_the_other_end) {
  const Result<ipc::PeerProcess> peer = ipc::peer_of(near_);
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer.value().process, getpid());
  EXPECT_EQ(peer.value().user, geteuid());
  fail_kernel_call(KernelCall::getsockopt, EINVAL);
  EXPECT_EQ(message_in(ipc::peer_of(near_)),
            "the other process does not say who it is: Invalid argument");
}

// One that is older watches by the number of the process.
TEST_F(IpcKernel, watches_the_process_at_the_other_end_while_that_is_open) {
  const ipc::PeerProcess peer{getpid(), geteuid()};
  for (const bool is_older : {false, true}) {
    SCOPED_TRACE(is_older);
    fail_kernel_call(KernelCall::getsockopt, ENOPROTOOPT, is_older ? 1 : 0);
    const Result<ipc::Descriptor> watched = ipc::watch(far_, peer);
    ASSERT_TRUE(watched.ok()) << message_in(watched);
    EXPECT_TRUE(watched.value());
    EXPECT_FALSE(is_over(watched.value()));
  }
  fail_kernel_call(KernelCall::getsockopt, ENOPROTOOPT);
  const Result<ipc::Descriptor> unseen = ipc::watch(far_, {0, geteuid()});
  ASSERT_TRUE(unseen.ok()) << message_in(unseen);
  EXPECT_FALSE(unseen.value());
  for (const int error : {EMFILE, ENFILE, ENOMEM}) {
    SCOPED_TRACE(error);
    fail_kernel_call(KernelCall::getsockopt, error);
    const Result<ipc::Descriptor> none = ipc::watch(far_, peer);
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().code, ErrorCode::host_out_of_memory);
    EXPECT_NE(none.error().message.find("as many descriptors open as it may"), std::string::npos);
  }
  {
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit none{0, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    fail_kernel_call(KernelCall::getsockopt, ENOPROTOOPT);
    const Result<ipc::Descriptor> watched = ipc::watch(far_, peer);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    ASSERT_FALSE(watched.ok()) << "an older one, without a descriptor";
    EXPECT_EQ(watched.error().code, ErrorCode::host_out_of_memory);
  }
  near_.reset();
  for (const bool is_older : {false, true}) {
    SCOPED_TRACE(is_older);
    fail_kernel_call(KernelCall::getsockopt, ENOPROTOOPT, is_older ? 1 : 0);
    EXPECT_EQ(message_in(ipc::watch(far_, peer)), "it has ended already");
  }
}

TEST_F(IpcKernel, without_random_numbers_leaves_identities_that_differ) {
  fail_kernel_call(KernelCall::getrandom, ENOSYS, 2);
  const ipc::Identity one = ipc::new_identity();
  const ipc::Identity other = ipc::new_identity();
  EXPECT_EQ(kernel_calls(KernelCall::getrandom), 2U);
  EXPECT_NE(one, other);
  EXPECT_NE(one, ipc::Identity{});
  EXPECT_NE(other, ipc::Identity{});
}

// --- descriptors

TEST(IpcDescriptor, of_a_number_that_is_too_large_is_none) {
  for (const int number : {1 << 20, (1 << 20) + 1}) {
    ipc::Descriptor::Making making;
    errno = 0;
    EXPECT_FALSE(making.adopt(number));
    EXPECT_EQ(errno, EMFILE);
  }
  for (const int number : {-1, -2}) {
    ipc::Descriptor::Making making;
    errno = EACCES;
    EXPECT_FALSE(making.adopt(number));
    EXPECT_EQ(errno, EACCES);
  }
}

}  // namespace
}  // namespace vpmm::ipc_test::kernel_test
