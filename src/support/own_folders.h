// Where this code lies: libraries that are installed beside it are looked for there.
#pragma once

#include <filesystem>
#include <vector>

namespace heteroplace {

/*! \brief Folders of the shared library that holds this code, and of the running program. */
std::vector<std::filesystem::path> OwnFolders();

}  // namespace heteroplace
