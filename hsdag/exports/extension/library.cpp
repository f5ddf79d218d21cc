// The library that programs load. It needs no symbol of OpenVINO, so that it can report an OpenVINO for which
// libhsdag_placements.so, next to it, was not compiled.
#include <dlfcn.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <openvino/core/version.hpp>

namespace ov {
class Extension;
}

#define HSDAG_TEXT(number) HSDAG_QUOTED(number)
#define HSDAG_QUOTED(number) #number

namespace {

const std::string kVersion =
    HSDAG_TEXT(OPENVINO_VERSION_MAJOR) "." HSDAG_TEXT(OPENVINO_VERSION_MINOR) "." HSDAG_TEXT(OPENVINO_VERSION_PATCH);

struct Version {  // as ov::Version
    const char* build;
    const char* description;
};

// Returns the version of the OpenVINO whose code is at an address, or "" if there is none.
std::string version_of(void* address) {
    Dl_info info;
    if (dladdr(address, &info) == 0) return "";
    void* const library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return "";
    const auto version = reinterpret_cast<Version (*)()>(dlsym(library, "get_openvino_version"));
    const std::string build = version == nullptr ? "" : version().build;
    dlclose(library);
    return build.substr(0, build.find('-'));
}

std::string folder_of(const void* address) {
    Dl_info info;
    const std::string path = dladdr(address, &info) == 0 ? "" : info.dli_fname;
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? "./" : path.substr(0, slash + 1);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void create_extensions(
    std::vector<std::shared_ptr<ov::Extension>>& extensions) {
    const std::string running = version_of(__builtin_return_address(0));
    if (running != kVersion)
        throw std::runtime_error("hsdag's extension library was compiled for OpenVINO " + kVersion + ", and this is " +
                                 (running.empty() ? "another one" : running) +
                                 ": export the placement again with this OpenVINO, or compile it as README.md says");
    const std::string path = folder_of(&kVersion) + "libhsdag_placements.so";
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(std::string("hsdag's extension library is incomplete: ") + dlerror());
    const auto create = reinterpret_cast<decltype(&create_extensions)>(dlsym(library, "hsdag_extensions"));
    if (create == nullptr) throw std::runtime_error(path + " is not hsdag's: it has no hsdag_extensions");
    create(extensions);
}
